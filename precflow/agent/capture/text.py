"""Record lines as text: what ``json.dumps`` would write, put together from parts that come again and again."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple

from precflow.agent.scope import NONE

if TYPE_CHECKING:
    from precflow.agent.capture.lines import Heading, Record
    from precflow.agent.measuring import Ticket

_LINE = (
    '{"order": %d, "level": %s, "module": %s, "class": %s, "call": %d, "operator": %s, "ordinal": %d, "phase": %s, "step": %d, '
    '"rank": %d, "site": %d, "forward": [%s], "movement": %s, "compiled": %s, "arguments": {%s}, "inputs": [%s], '
    '"outputs": [%s]}\n'
)
_OWN = 4  # statistics that are a tensor's own: extremes and sums
_TENSOR = '{"index": %s, "source": %s, "weight": %s, %s}'
_MEASURED = '"dtype": "%s", "shape": %s, "content": "%s", "stored": %s%s'


def line_text(order: int, heading: Heading, when: Tuple[int, int], inputs: Sequence[Record], outputs: Sequence[Record]) -> str:
    """Return the line of a call, with the newline.

    Args:
        order: Its number in the step.
        heading: What it says besides the tensors.
        when: Step and rank.
        inputs: Tensors that went in, their tickets filled in.
        outputs: Tensors that came out, the same.
    """
    frame = heading.frame
    return _LINE % (
        order,
        quoted(heading.level),
        quoted(frame.module),
        quoted(frame.class_name),
        frame.call,
        quoted(heading.operator),
        heading.ordinal,
        quoted(heading.phase),
        when[0],
        when[1],
        heading.site,
        ", ".join(map(str, heading.forward)) if heading.forward else "",
        "true" if heading.movement else "false",
        "true" if frame.compiled else "false",
        _arguments_text(heading.arguments) if heading.arguments else "",
        ", ".join([tensor_text(record) for record in inputs]),
        ", ".join([tensor_text(record) for record in outputs]),
    )


def tensor_text(record: Record) -> str:
    """Return one tensor of a line; what its record's detail does not ask for is left out."""
    source, weight = record["source"], record["weight"]
    return _TENSOR % (
        quoted(record["index"]),
        "null" if source is None else "[%d, %s]" % (source[0], quoted(source[1])),
        quoted(weight) if weight else '""',
        _measured_text(record),
    )


def _measured_text(record: Record) -> str:
    """Return what a ticket knows, made once a detail: a tensor that goes from call to call has several records."""
    ticket: Ticket = record["ticket"]
    detail = record["detail"]
    if ticket.text[0] == detail:
        return ticket.text[1]
    only_content = detail in ("digest", NONE)
    text = _MEASURED % (
        record["dtype"],
        shape_text(record["shape"]),
        ticket.content,
        "true" if ticket.stored and not only_content else "false",
        "" if only_content else _kept_text(ticket, detail),
    )
    if ticket.known:  # otherwise it may be that of several tensors
        ticket.text = (detail, text)
    return text


def _kept_text(ticket: Ticket, detail: str) -> str:
    """Return the statistics and the part of a tensor, where they belong to its line."""
    text = ""
    if ticket.statistics is not None and detail != "tensors":
        text = _statistics_text(ticket)
    if ticket.kept is not None:
        text += ', "share": %r, "part": %s' % (ticket.kept.part.share, quoted(ticket.kept.name))
    return text


def _statistics_text(ticket: Ticket) -> str:
    known: Sequence[Optional[float]] = ticket.statistics or ()
    numbers = ", ".join(map(_number_text, known[:_OWN]))
    text = ', "statistics": [%s, %s]' % (numbers, _counts_text(tuple(known[_OWN:])))
    if ticket.mark:
        text += ', "mark": "%s"' % ticket.mark
    if ticket.row_norms is not None:
        text += ', "row_norms": ["%s", %d, %d]' % ticket.row_norms
    return text


@lru_cache(maxsize=1024)
def _counts_text(counts: Tuple[Optional[float], ...]) -> str:
    """Return the numbers that nearly all tensors have in common: how many of their values are special."""
    return ", ".join(map(_number_text, counts))


def _number_text(number: Optional[float]) -> str:
    return "null" if number is None else repr(number)


def _arguments_text(arguments: Mapping[str, str]) -> str:
    return ", ".join(["%s: %s" % (quoted(name), quoted(text)) for name, text in arguments.items()])


@lru_cache(maxsize=8192)
def quoted(text: str) -> str:
    """Return a text as JSON has it."""
    return json.dumps(text, ensure_ascii=False)


@lru_cache(maxsize=8192)
def shape_text(shape: Tuple[Any, ...]) -> str:
    """Return sizes as JSON has them."""
    return "[%s]" % ", ".join(map(str, shape))

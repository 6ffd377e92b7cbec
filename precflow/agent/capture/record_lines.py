"""Record lines: a call and its tensors as they stand in the dump, in order of completion."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from precflow.agent.capture.lineage import Sources, Storages, seen
from precflow.agent.capture.tickets import NOTHING, Contents
from precflow.agent.contract import NONE, Identity, identity_text, operator_of
from precflow.agent.measure.content_id import dtype_name
from precflow.agent.measure.parts import kept_of
from precflow.agent.selection import Choice

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.call_stack import Frame
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.tickets import Tickets
    from precflow.agent.capture.weights import Weights
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.batching import Ticket

# Record lines as text: what ``json.dumps`` would write, put together from parts that come again and again.

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


MOST_LINES = 512  # that wait for their tensors to be measured

_CONTENT_ONLY = Choice("digest", None)
_NO_CONTENT = Choice(NONE, None)

Record = Dict[str, Any]  # a tensor as a line shows it, but for what its ticket will say


class Heading(NamedTuple):
    """What a line says about its call, besides the tensors.

    Attributes:
        level: ``module``, ``api`` or ``operator``.
        frame: The module call that it belongs to.
        operator: Canonical name, ``""`` for the module itself.
        ordinal: How often the operator ran before in this module call.
        site: Number of the call site.
        movement: The operator only moves values: its tensors are not stored.
        arguments: The arguments that are not tensors.
        phase: ``forward``, ``backward``, ``gradient``, ``optimizer``.
        forward: Orders of the forward lines that a line of another phase belongs to.
    """

    level: str
    frame: Frame
    operator: str
    ordinal: int
    site: int
    movement: bool
    arguments: Mapping[str, str]
    phase: str = "forward"
    forward: Sequence[int] = ()


_Pending = Tuple[int, Heading, Sequence[Record], Sequence[Record]]  # order, what it says, what went in and came out


class Lines:
    """Makes the lines of a run and hands them to the writer, in order of completion.

    Lines wait until their tensors are measured, many at once: :meth:`flush`.

    Args:
        writer: Where lines go; ``None`` where nothing is written.
        weights: The weights of the model.
        detail: What is kept of tensors where no choice says otherwise: one of ``contract.DETAILS``.
        rank: Rank of this process.
        fine: Sketches keep high and low parts apart.
        contents: What measures tensors, where it is not made here.
    """

    def __init__(  # noqa: PLR0913  what a recorder was asked for
        self,
        writer: Optional[Writer],
        weights: Weights,
        *,
        detail: str,
        rank: int,
        fine: bool = False,
        contents: Optional[Tickets] = None,
    ) -> None:
        self._storages = Storages()
        self.sources = Sources(self._storages)
        self.records = 0
        self._writer = writer
        self._weights = weights
        self._contents: Tickets = contents or Contents(writer, self._storages, fine=fine)
        self._general = Choice(detail, None)
        self._rank = rank
        self._step = 0
        self._order = 0
        self._pending: List[_Pending] = []
        self._outputs: Dict[str, str] = {}

    def begin(self, step: int) -> None:
        """Begin a step.

        Raises:
            WriteError: The step before cannot be written, or the files of this one cannot be opened.
        """
        self.flush()
        self._step = step
        self._order = 0
        self._outputs = {}
        self.sources.forget()
        self._contents.forget()
        if self._writer is not None:
            self._writer.open_step(step, self._rank)

    @property
    def failed(self) -> bool:
        """The writer cannot go on: from here on nothing is recorded."""
        return self._writer is not None and self._writer.failure is not None

    @property
    def outputs(self) -> Dict[str, str]:
        """Content id of every output of this step, by identity text.

        Raises:
            WriteError: What waits cannot be written.
        """
        self.flush()
        return self._outputs

    def describe(
        self, tensors: Sequence[Placed], *, store: bool, returned: bool = False, choice: Optional[Choice] = None
    ) -> List[Record]:
        """Return the tensors as they are now: source and name, and a ticket for their content, which is read now or copied.

        Args:
            tensors: With their places.
            store: More is kept of them than the content id; where that is not taken, no more than type and shape.
            returned: Weights have content too.
            choice: What is kept, where a rule says it; else the general detail.

        Raises:
            WriteError: A tensor cannot be stored.
        """
        chosen = choice or self._general
        if not store:
            chosen = _NO_CONTENT if chosen.detail == "statistics" else _CONTENT_ONLY
        return [self._record(index, tensor, chosen, returned=returned) for index, tensor in tensors]

    def written(self, tensor: torch.Tensor) -> None:
        """Note that a call wrote to memory that was there before."""
        self._contents.written(tensor)

    def unsure(self) -> None:
        """Note that code ran that may have written anywhere unseen: what memory holds is read anew."""
        self._contents.forget()

    def emit(self, heading: Heading, inputs: Sequence[Record], outputs: Sequence[Record]) -> int:
        """Take a call's line, and the lists with it, and return its order.

        Raises:
            WriteError: Lines cannot be written.
        """
        order = self._order
        self._order += 1
        self.records += len(inputs) + len(outputs)
        self._pending.append((order, heading, inputs, outputs))
        if self._contents.full or len(self._pending) >= MOST_LINES:
            self.flush()
        return order

    def flush(self) -> None:
        """Write everything that waits; nothing happens once the writer has failed.

        Raises:
            WriteError: A line or a tensor cannot be written.
        """
        pending, self._pending = self._pending, []
        if self.failed:
            return
        self._contents.flush()
        self.sources.purge()
        self._storages.purge()
        when = (self._step, self._rank)
        for _, heading, _, outputs in pending:
            for record in outputs:
                self._outputs[self._identity(heading, record["index"])] = record["ticket"].known
        if self._writer is not None and pending:
            lines = [line_text(order, heading, when, inputs, outputs) for order, heading, inputs, outputs in pending]
            records = sum([len(inputs) + len(outputs) for _, _, inputs, outputs in pending])
            self._writer.append("".join(lines).encode("utf-8", "backslashreplace"), len(lines), records)

    def _record(self, index: str, tensor: torch.Tensor, chosen: Choice, *, returned: bool) -> Record:
        now = seen(tensor)
        weight = self._weights.name(tensor, now)
        kept = None if chosen.part is None else kept_of(tuple(tensor.shape), chosen.part.slices, chosen.part.sample)
        unknown = chosen is _NO_CONTENT or (weight and not returned)
        ticket = NOTHING if unknown else self._contents.of(tensor, chosen.detail, kept, now)
        source = None if weight else self.sources.find(tensor, now)
        return {
            "index": index,
            "dtype": dtype_name(tensor.dtype),
            "shape": () if tensor.is_nested else tuple(tensor.shape),  # which has rows of different lengths
            "source": source,
            "weight": weight,
            "detail": chosen.detail,
            "ticket": ticket,
            "seen": now,
        }

    def _identity(self, heading: Heading, index: str) -> str:
        frame = heading.frame
        operator = operator_of(heading.level, heading.operator)
        head, tail = _identity_parts(frame.module, frame.call, operator, heading.phase, index, self._step, self._rank)
        return head + str(heading.ordinal) + tail if operator else head


@lru_cache(maxsize=8192)
def _identity_parts(  # noqa: PLR0913, PLR0917  who a record is
    module: str, call: int, operator: str, phase: str, index: str, step: int, rank: int
) -> Tuple[str, str]:
    """Return the identity of an output in two parts, between which the ordinal of its operator belongs."""
    text = identity_text(Identity(module, call, operator, 0, phase, "output", index, step, rank))
    if not operator:
        return text, ""
    place = text.rindex(".0/%s.output." % phase) + 1
    return text[:place], text[place + 1 :]

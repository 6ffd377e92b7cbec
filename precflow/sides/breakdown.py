"""Reads where a side broke: from the exception that its agent reported, or from what a dead agent has left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precflow.agent import redaction
from precflow.breakdown import AliveTensor, Breakdown, GivenTensor, Memory
from precflow.sides.agent_log import LastCall, read_last_call

_LONGEST = 20_000  # letters of a traceback
_MOST = 16  # tensors, and kinds of shapes


def read_reported(side: str, where: object) -> Breakdown | None:
    """Return where user code raised an exception, as the agent has reported it; ``None`` if it has not.

    What has another form than expected is left out: the agent may be of another version.
    """
    if not isinstance(where, Mapping):
        return None
    memory = _read_memory(where.get("memory"))
    step = where.get("step")
    return Breakdown(
        side=side,
        kind="memory" if memory else "exception",
        step=str(step) if isinstance(step, int) and step >= 0 else "",
        phase=_text(where, "phase"),
        module=_text(where, "module"),
        class_name=_text(where, "class"),
        operator=_text(where, "operator"),
        missing=_text(where, "missing"),
        missing_in=_text(where, "missing_in"),
        file=_text(where, "file"),
        line=_number(where, "line"),
        source=_text(where, "source"),
        site=_text(where, "site"),
        inputs=_read_tensors(where.get("inputs")) or _parse_tensors(_text(where, "arrived")),
        given=_read_tensors(where.get("given")),
        seen=_read_shapes(where.get("seen")),
        last=_text(where, "last"),
        memory=memory,
        trace=_text(where, "trace"),
    )


def read_left_behind(side: str, kind: str, folder: Path, rank: int, log: Sequence[str]) -> Breakdown:
    """Return where a side broke that could not say so itself.

    Args:
        side: The side.
        kind: ``crash``, ``hang`` or ``silence``.
        folder: Where its agent worked.
        rank: The rank that broke.
        log: The last lines that it printed, with the stack of Python.
    """
    call = read_last_call(folder, rank) or LastCall()
    return Breakdown(
        side=side,
        kind=kind,
        step=call.step,
        phase=call.phase,
        module=call.module,
        class_name=call.class_name,
        operator=call.operator,
        site=call.site,
        last=call.last,
        inputs=_parse_tensors(call.given),
        trace="\n".join(log)[:_LONGEST],
    )


def _text(where: Mapping[str, Any], key: str) -> str:
    value = where.get(key)
    return redaction.redact_text(value)[:_LONGEST] if isinstance(value, str) else ""


def _number(where: Mapping[str, Any], key: str) -> int:
    value = where.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _list(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value[:_MOST] if isinstance(each, Mapping)] if isinstance(value, list) else []


def _format_shape(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else ""


def _read_tensors(value: object) -> tuple[GivenTensor, ...]:
    return tuple(
        GivenTensor(_text(each, "index"), _text(each, "dtype"), _format_shape(each.get("shape")), _text(each, "device"))
        for each in _list(value)
    )


def _read_shapes(value: object) -> tuple[str, ...]:
    calls = value[:_MOST] if isinstance(value, list) else []
    return tuple(" ".join(map(_format_shape, shapes)) for shapes in calls if isinstance(shapes, list))


def _read_memory(value: object) -> Memory | None:
    if not isinstance(value, Mapping) or not value:
        return None
    largest = tuple(
        AliveTensor(_text(each, "name"), _text(each, "dtype"), _format_shape(each.get("shape")), _number(each, "bytes"))
        for each in _list(value.get("largest"))
    )
    return Memory(_text(value, "device"), _text(value, "asked"), _number(value, "tensors"), _number(value, "bytes"), largest)


def _parse_tensors(text: str) -> tuple[GivenTensor, ...]:
    """Return tensors as the file of the last call has them.

    >>> [str(tensor) for tensor in _parse_tensors("0 float32 [2, 77]; mask bool [77]")]
    ['0 float32 [2, 77]', 'mask bool [77]']
    """
    return tuple(GivenTensor(*each.split(" ", 2)) for each in text.split("; ") if each.count(" ") >= 2)

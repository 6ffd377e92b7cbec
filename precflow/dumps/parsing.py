"""Lines of record files as :class:`Call` values: many at a time where all are whole, one by one where one is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from precflow.agent.contract import LEVELS, PHASES, Identity, operator_of
from precflow.dumps.records import Call, Record, Statistics

_SHAPES: dict[tuple[int, ...], tuple[int, ...]] = {}  # a model has few of them: equal ones share their memory
_SHAPES_KEPT = 1 << 16


class _Tensor(msgspec.Struct, gc=False):
    """A tensor as it stands in a line."""

    index: str
    dtype: str
    shape: tuple[int, ...]
    content: str
    stored: bool
    source: tuple[int, str] | None = None
    weight: str = ""
    statistics: Statistics | None = None
    share: float = 1.0
    part: str = ""


class _Line(msgspec.Struct, gc=False, rename={"class_name": "class"}):
    """A line as it stands in the file. Keys that it does not name are of a later version and change nothing here."""

    order: int
    level: str
    module: str
    call: int
    operator: str
    ordinal: int
    phase: str
    step: int
    rank: int
    movement: bool
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    class_name: str = ""
    site: int | None = None
    compiled: bool = False
    arguments: dict[str, str] | None = None
    forward: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(_Line)


def parse_calls(lines: bytes | memoryview, sites: Sequence[str], place: tuple[int, int] | None = None) -> list[Call]:
    """Read whole lines of ``records-*.jsonl``.

    Args:
        lines: One or more lines, each one JSON object.
        sites: Places in the source, which a line indexes; an index that is not there gives ``""``.
        place: Rank and step of the file; ``None`` takes lines of any.

    Raises:
        ValueError: A line is torn, or a value is not what it should be: read them one by one then, with :func:`parse_call`.
    """
    return [_call(line, sites, place) for line in _DECODER.decode_lines(lines)]


def parse_call(line: bytes | str, sites: Sequence[str], place: tuple[int, int] | None = None) -> Call:
    """Read one line; unlike the fast way it takes what JSON of Python takes, such as half a surrogate pair in a name.

    Raises:
        ValueError: The line is torn, of another place, or a value is not what it should be; the message says which.
    """
    try:
        return _call(msgspec.convert(json.loads(line), _Line), sites, place)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _call(line: _Line, sites: Sequence[str], place: tuple[int, int] | None) -> Call:
    if line.level not in LEVELS or line.phase not in PHASES:
        raise ValueError(f"unknown level {line.level!r} or phase {line.phase!r}")
    if place is not None and (line.rank, line.step) != place:
        raise ValueError(f"it is of rank {line.rank} and step {line.step}, in a file of rank {place[0]} and step {place[1]}")
    site = line.site
    line.module, line.operator = sys.intern(line.module), sys.intern(line.operator)
    return Call(
        order=line.order,
        level=sys.intern(line.level),
        module=line.module,
        class_name=sys.intern(line.class_name),
        call=line.call,
        operator=line.operator,
        ordinal=line.ordinal,
        phase=sys.intern(line.phase),
        step=line.step,
        rank=line.rank,
        site=sites[site] if site is not None and 0 <= site < len(sites) else "",
        movement=line.movement,
        compiled=line.compiled,
        arguments=line.arguments or {},
        inputs=_records(line, "input", line.inputs),
        outputs=_records(line, "output", line.outputs),
        forward=line.forward,
    )


def _records(line: _Line, role: str, tensors: list[_Tensor]) -> tuple[Record, ...]:
    """Make the records of one role. This runs for every record of a dump: positions instead of names, no call that can go."""
    who = (line.module, line.call, sys.intern(operator_of(line.level, line.operator)), line.ordinal, line.phase, role)
    when = (line.step, line.rank)
    intern, make, order = sys.intern, Identity._make, line.order
    return tuple(
        [
            Record(
                make((*who, intern(one.index), *when)),
                order,
                intern(one.dtype),
                _shared(one.shape),
                one.content,
                one.stored,
                one.source,
                one.weight,
                one.statistics,
                one.share,
                one.part,
            )
            for one in tensors
        ]
    )


def _shared(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(_SHAPES) > _SHAPES_KEPT:
        _SHAPES.clear()
    return _SHAPES.setdefault(shape, shape)


def plain_json(data: bytes) -> Any:
    """Read JSON into plain data, as fast as it goes.

    Raises:
        ValueError: It is not JSON.
    """
    return msgspec.json.decode(data)

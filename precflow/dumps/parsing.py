"""Lines of record files as :class:`Call` values: many at a time where all are whole, one by one where one is not."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from precflow.agent import intake
from precflow.agent.contract import operator_of
from precflow.dumps.records import Call, CallRole, Count, Record

_ARGUMENTS_KEPT = 1 << 16  # a model calls the same things with the same arguments again and again: they share their memory
_FEW = 16  # dimensions: so many of any size still give a number of elements that a float holds
_MOST_ELEMENTS = 1 << 62
_NOBODY = CallRole("", 0, "", 0, "", "", 0, 0, 0)


class _Tensor(Record, frozen=True, gc=False, kw_only=True):
    """A record as it stands in a line. Whose it is stands in the line around it, and is filled in once that is read."""

    whose: CallRole = _NOBODY
    source: tuple[Count, str] | None = None
    weight: str = ""


class _Line(msgspec.Struct, gc=False, rename={"class_name": "class"}):
    """A line as it stands in the file. Keys that it does not name are of a later version and change nothing here."""

    order: Count
    level: Literal["module", "api", "operator"]  # contract.LEVELS
    module: str
    call: Count
    operator: str
    ordinal: Count
    phase: Literal["forward", "backward", "gradient", "optimizer"]  # contract.PHASES
    step: Count
    rank: Count
    movement: bool
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    class_name: str = ""
    site: int | None = None
    compiled: bool = False
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    forward: tuple[Count, ...] = ()


_DECODER = msgspec.json.Decoder(_Line)
_known: dict[bytes, dict[str, str]] = {}


def parse_calls(lines: bytes | memoryview, sites: Sequence[str], place: tuple[int, int] | None = None) -> list[Call]:
    """Read whole lines of ``records-*.jsonl``.

    Args:
        lines: One or more lines, each one JSON object.
        sites: Places in the source, which a line indexes; an index that is not there gives ``""``.
        place: Rank and step of the file; ``None`` takes lines of any.

    Raises:
        ValueError: A line is torn, or a value is not what it should be: read them one by one then, with :func:`parse_call`.
    """
    return [_call(line, sites, place, _arguments(line.arguments)) for line in _DECODER.decode_lines(lines)]


def parse_call(line: bytes | str, sites: Sequence[str], place: tuple[int, int] | None = None) -> Call:
    """Read one line; unlike the fast way it takes what JSON of Python takes, such as half a surrogate pair in a name.

    Raises:
        ValueError: The line is torn, of another place, or a value is not what it should be; the message says which.
    """
    plain = intake.parse_json(line)
    arguments = plain.pop("arguments", None) if isinstance(plain, dict) else None
    return _call(msgspec.convert(plain, _Line), sites, place, _texts(arguments))


def _call(line: _Line, sites: Sequence[str], place: tuple[int, int] | None, arguments: Mapping[str, str]) -> Call:
    if place is not None and (line.rank, line.step) != place:
        raise ValueError(f"it is of rank {line.rank} and step {line.step}, in a file of rank {place[0]} and step {place[1]}")
    _identify(line)
    intern, site = sys.intern, line.site
    return Call(
        order=line.order,
        level=line.level,
        module=intern(line.module),
        class_name=intern(line.class_name),
        call=line.call,
        operator=intern(line.operator),
        ordinal=line.ordinal,
        phase=line.phase,
        step=line.step,
        rank=line.rank,
        site=sites[site] if site is not None and 0 <= site < len(sites) else "",
        movement=line.movement,
        compiled=line.compiled,
        arguments=arguments,
        inputs=line.inputs,
        outputs=line.outputs,
        forward=line.forward,
    )


def _identify(line: _Line) -> None:
    """Tell the records of a line whose they are: those that the decoder made are completed, not made anew."""
    module, operator = sys.intern(line.module), sys.intern(operator_of(line.level, line.operator))
    call, ordinal, phase, step, rank, order = line.call, line.ordinal, line.phase, line.step, line.rank, line.order
    for role, records in (("input", line.inputs), ("output", line.outputs)):
        whose = CallRole(module, call, operator, ordinal, phase, role, step, rank, order)
        for one in records:
            if len(one.shape) > _FEW and math.prod(one.shape) > _MOST_ELEMENTS:
                raise ValueError(f"a tensor of {len(one.shape)} dimensions has more elements than any memory")
            msgspec.structs.force_setattr(one, "whose", whose)


def _arguments(raw: msgspec.Raw) -> dict[str, str]:
    """Return the arguments of a line: the same value for the same text.

    Raises:
        ValueError: They are not texts by name.
    """
    text = bytes(raw)
    known = _known.get(text)
    if known is None:
        if len(_known) > _ARGUMENTS_KEPT:
            _known.clear()
        known = _known[text] = _texts(msgspec.json.decode(text))
    return known


def _texts(plain: object) -> dict[str, str]:
    try:
        return msgspec.convert(plain, dict[str, str] | None) or {}
    except msgspec.ValidationError as error:
        raise ValueError(f"{error} - at `$.arguments`") from error

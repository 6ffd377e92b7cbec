"""Record files: read in pieces, checked against their seal beside it; torn lines are told one by one."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from precflow.agent import intake
from precflow.agent.contract import ROLES, Level, Phase, operator_of
from precflow.dumps.garbage import collector_off
from precflow.dumps.header import FileSeal
from precflow.dumps.layout import rank_and_step_of
from precflow.dumps.records import Call, CallRole, Count, Record

# Lines of record files as :class:`Call` values: many at a time where all are whole, one by one where one is not.

_ARGUMENTS_KEPT = 1 << 16  # a model calls the same things with the same arguments again and again: they share their memory
_FEW = 16  # dimensions: so many of any size still give a number of elements that a float holds
_MOST_ELEMENTS = 1 << 62
_NOBODY = CallRole("", 0, "", 0, "", "", 0, 0, 0)


class _LineRecord(Record, frozen=True, gc=False, kw_only=True):
    """A record as it stands in a line. Whose it is stands in the line around it, and is filled in once that is read."""

    whose: CallRole = _NOBODY
    source: tuple[Count, str] | None = None
    weight: str = ""


class _Line(msgspec.Struct, gc=False, rename={"class_name": "class"}):
    """A line as it stands in the file. Keys that it does not name are of a later version and change nothing here."""

    order: Count
    level: Level
    module: str
    call: Count
    operator: str
    ordinal: Count
    phase: Phase
    step: Count
    rank: Count
    movement: bool
    inputs: tuple[_LineRecord, ...]
    outputs: tuple[_LineRecord, ...]
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
    return [_make_call(line, sites, place, _parse_arguments(line.arguments)) for line in _DECODER.decode_lines(lines)]


def parse_call(line: bytes | str, sites: Sequence[str], place: tuple[int, int] | None = None) -> Call:
    """Read one line; unlike the fast way it takes what JSON of Python takes, such as half a surrogate pair in a name.

    Raises:
        ValueError: The line is torn, of another place, or a value is not what it should be; the message says which.
    """
    plain = intake.parse_json(line)
    arguments = plain.pop("arguments", None) if isinstance(plain, dict) else None
    return _make_call(msgspec.convert(plain, _Line), sites, place, _convert_arguments(arguments))


def _make_call(line: _Line, sites: Sequence[str], place: tuple[int, int] | None, arguments: Mapping[str, str]) -> Call:
    if place is not None and (line.rank, line.step) != place:
        raise ValueError(f"it is of rank {line.rank} and step {line.step}, in a file of rank {place[0]} and step {place[1]}")
    _attach_identity(line)
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


def _attach_identity(line: _Line) -> None:
    """Tell the records of a line whose they are: those that the decoder made are completed, not made anew."""
    module, operator = sys.intern(line.module), sys.intern(operator_of(line.level, line.operator))
    call, ordinal, phase, step, rank, order = line.call, line.ordinal, line.phase, line.step, line.rank, line.order
    for role, records in zip(ROLES, (line.inputs, line.outputs), strict=True):
        whose = CallRole(module, call, operator, ordinal, phase, role, step, rank, order)
        for one in records:
            if len(one.shape) > _FEW and math.prod(one.shape) > _MOST_ELEMENTS:
                raise ValueError(f"a tensor of {len(one.shape)} dimensions has more elements than any memory")
            msgspec.structs.force_setattr(one, "whose", whose)


def _parse_arguments(raw: msgspec.Raw) -> dict[str, str]:
    """Return the arguments of a line: the same value for the same text.

    Raises:
        ValueError: They are not texts by name.
    """
    text = bytes(raw)
    known = _known.get(text)
    if known is None:
        if len(_known) > _ARGUMENTS_KEPT:
            _known.clear()
        known = _known[text] = _convert_arguments(msgspec.json.decode(text))
    return known


def _convert_arguments(plain: object) -> dict[str, str]:
    try:
        return msgspec.convert(plain, dict[str, str] | None) or {}
    except msgspec.ValidationError as error:
        raise ValueError(f"{error} - at `$.arguments`") from error


_CHUNK = 1 << 18  # bytes; what is decoded of them still lies in the processor's cache when it becomes records
_HASHED = 1 << 20
_LONGEST_LINE = 1 << 28  # bytes


class RecordFile(NamedTuple):
    """What one record file gave.

    Attributes:
        calls: In the order of its lines.
        problems: Everything that is wrong with it, in words.
        altered: The problem that lets none of its lines be trusted, ``""`` where there is none: it has other bytes than were
            sealed. What is cut short has whole lines.
    """

    calls: list[Call]
    problems: list[str]
    altered: str = ""


def read_records(folder: Path, name: str, seal: FileSeal | None, sites: Sequence[str]) -> RecordFile:
    """Read one record file.

    Args:
        folder: The dump.
        name: The file, relative to the dump.
        seal: Size and checksum; ``None`` where it was never sealed.
        sites: Places in the source, which lines index.
    """
    calls: list[Call] = []
    torn: list[str] = []
    number = 0
    try:
        with collector_off() as made, ThreadPoolExecutor(1) as beside:  # which needs no turn of this thread
            problem = beside.submit(_find_seal_problem, folder / name, name, seal)
            for piece in _pieces(folder / name):
                number = _read_piece(piece, name, number, calls, torn, sites)
            told, trusted = problem.result()
            made.append(len(calls))
    except FileNotFoundError:
        return RecordFile(calls, [f"{name} is missing"])
    except OSError as error:
        return RecordFile(calls, [*torn, f"{name} cannot be read: {error.strerror}"])
    return RecordFile(calls, [told, *torn] if told else torn, "" if trusted else told)


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines; the last one may lack its end."""
    rest: list[bytes] = []
    for chunk in intake.pieces(path, _CHUNK):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*rest, chunk[:end]])
            rest = [chunk[end:]]
        elif len(rest) < _LONGEST_LINE // _CHUNK:
            rest.append(chunk)
        else:
            raise OSError(errno.EFBIG, f"it has a line of more than {_LONGEST_LINE >> 20} MiB")
    if any(rest):
        yield b"".join(rest)


def _read_piece(  # noqa: PLR0913, PLR0917  it goes on where the piece before it ended
    piece: bytes, name: str, number: int, calls: list[Call], torn: list[str], sites: Sequence[str]
) -> int:
    """Read the lines of a piece, which start behind line ``number``, and return the number of the last one."""
    place = rank_and_step_of(name)
    lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    try:
        found = parse_calls(piece, sites, place)
    except (ValueError, RecursionError):
        found = []
    if len(found) == lines:
        calls += found
        return number + lines
    for count, line in enumerate(piece.removesuffix(b"\n").split(b"\n"), start=number + 1):
        _read_line(f"{name}:{count}", line, calls, torn, sites, place)
    return number + lines


def _read_line(  # noqa: PLR0913, PLR0917  the same, for one line
    where: str, line: bytes, calls: list[Call], torn: list[str], sites: Sequence[str], place: tuple[int, int] | None
) -> None:
    try:
        calls.append(parse_call(line, sites, place))
    except ValueError as error:
        torn.append(f"{where} is torn: {error}")


def _find_seal_problem(path: Path, name: str, seal: FileSeal | None) -> tuple[str, bool]:
    """Return what is wrong with a file by its seal, ``""`` where nothing is, and whether its lines can be trusted.

    Raises:
        OSError: It cannot be read.
    """
    if seal is None:
        return "", True
    length = len(seal.blake2b) // 2
    digest = hashlib.blake2b(digest_size=length if 1 <= length <= 64 else 64)
    with intake.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != seal.bytes:
            shorter = size < seal.bytes
            return f"{name} is {'cut short' if shorter else 'too long'}: {size} bytes instead of {seal.bytes}", shorter
        while chunk := file.read(_HASHED):
            digest.update(chunk)
    good = digest.hexdigest() == seal.blake2b.lower()
    return "" if good else f"{name} is damaged: its bytes do not have the checksum that was sealed", good

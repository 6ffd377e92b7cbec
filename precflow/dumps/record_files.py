"""Reads record files: each line is a call with its records. Damage is reported, and what is whole is still read.

A file is read in pieces of whole lines, and meanwhile another thread checks its bytes against their seal. A piece is decoded
in one go, which is fast; if that fails, its lines are read one by one, so that each torn line is named and the others are kept.
"""

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

_CHUNK = 1 << 18  # bytes; decoded lines are still in the processor's cache when they become records
_HASHED = 1 << 20  # bytes that are hashed at a time
_LONGEST_LINE = 1 << 28  # bytes
_ARGUMENTS_KEPT = 1 << 16  # different ones; a model repeats its calls, and equal arguments share their memory
_FEW = 16  # dimensions; up to this many, the number of elements need not be checked
_MOST_ELEMENTS = 1 << 62
_NOBODY = CallRole("", 0, "", 0, "", "", 0, 0, 0)


class _LineRecord(Record, frozen=True, gc=False, kw_only=True):
    """A record as a line has it. The call that it belongs to is known once the whole line is read, and filled in then."""

    whose: CallRole = _NOBODY
    source: tuple[Count, str] | None = None
    weight: str = ""


class _Line(msgspec.Struct, gc=False, rename={"class_name": "class"}):
    """A line of the file. Keys that are not listed here come from a later version, and are ignored."""

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


class RecordFile(NamedTuple):
    """What one record file gave.

    Attributes:
        calls: In the order of its lines.
        problems: Everything that is wrong with it, in words.
        altered: Why none of its lines can be trusted: it has other bytes than were sealed; ``""`` if it has not. A file that is
            cut short is not altered: its whole lines are good.
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
        with collector_off() as made, ThreadPoolExecutor(1) as beside:  # hashing releases the interpreter's lock
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
    """Yield the file in pieces of whole lines; the last line may be cut."""
    rest: list[bytes] = []
    for chunk in intake.read_pieces(path, _CHUNK):
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


def _read_piece(  # noqa: PLR0913, PLR0917  it continues where the piece before it ended
    piece: bytes, name: str, number: int, calls: list[Call], torn: list[str], sites: Sequence[str]
) -> int:
    """Read the lines of a piece, the first of which follows line ``number``, and return the number of the last one."""
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
    """Return what is wrong with a file by its seal (``""``: nothing), and whether its lines can be trusted.

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


def parse_calls(lines: bytes | memoryview, sites: Sequence[str], place: tuple[int, int] | None = None) -> list[Call]:
    """Read whole lines of ``records-*.jsonl``.

    Args:
        lines: One or more lines, each a JSON object.
        sites: Places in the source; a line has an index into them. An index out of range gives ``""``.
        place: Rank and step of the file; ``None`` accepts lines of any.

    Raises:
        ValueError: A line is torn or has a wrong value; :func:`parse_call` on each line says which.
    """
    return [_make_call(line, sites, place, _parse_arguments(line.arguments)) for line in _DECODER.decode_lines(lines)]


def parse_call(line: bytes | str, sites: Sequence[str], place: tuple[int, int] | None = None) -> Call:
    """Read one line. It accepts what Python's JSON accepts, such as half a surrogate pair in a name; the fast way does not.

    Raises:
        ValueError: The line is torn, belongs to another rank or step, or has a wrong value; the message says which.
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
    """Fill in, in each record of a line, the call that it belongs to; in place, because copies of all records take time."""
    module, operator = sys.intern(line.module), sys.intern(operator_of(line.level, line.operator))
    call, ordinal, phase, step, rank, order = line.call, line.ordinal, line.phase, line.step, line.rank, line.order
    for role, records in zip(ROLES, (line.inputs, line.outputs), strict=True):
        whose = CallRole(module, call, operator, ordinal, phase, role, step, rank, order)
        for record in records:
            if len(record.shape) > _FEW and math.prod(record.shape) > _MOST_ELEMENTS:
                raise ValueError(f"a tensor of {len(record.shape)} dimensions has more elements than any memory")
            msgspec.structs.force_setattr(record, "whose", whose)


def _parse_arguments(raw: msgspec.Raw) -> dict[str, str]:
    """Return the arguments of a line; equal text gives the same dictionary.

    Raises:
        ValueError: They are not a map from name to text.
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

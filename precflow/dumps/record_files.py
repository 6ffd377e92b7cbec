"""Reads record files, in which each line is a call with its records. Damage is reported, and intact lines are still read.

A file is read in pieces of whole lines, while another thread checks its bytes against the seal. A piece is decoded in one go,
which is fast. If that fails, its lines are decoded one by one, so that each torn line is named and the others are kept.
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

_CHUNK = 1 << 18  # bytes; small enough that decoded lines are still in the processor's cache when they become records
_HASHED = 1 << 20  # bytes that are hashed at a time
_LONGEST_LINE = 1 << 28  # bytes
_ARGUMENTS_KEPT = 1 << 16  # different texts; a model repeats its calls, and equal arguments share their memory
_SHAPES_KEPT = 1 << 12  # different ones; models repeat theirs
_FEW = 16  # dimensions; of up to this many, each at most 2^62, the product is below 2^1024, so it can become a float64
_MOST_ELEMENTS = 1 << 62
_NOBODY = CallRole("", 0, "", 0, "", "", 0, 0, 0)


class _LineRecord(Record, frozen=True, gc=False, kw_only=True):
    """A record as decoded from a line. Its ``whose`` is filled in after the whole line is decoded and the call is known."""

    whose: CallRole = _NOBODY
    source: tuple[Count, str] | None = None
    weight: str = ""


class _Line(msgspec.Struct, gc=False, rename={"class_name": "class"}):
    """A line of the file. Unknown keys are ignored, because a later version may add some."""

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
_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
_known: dict[bytes, dict[str, str]] = {}  # JSON of a line's arguments -> decoded


class RecordFile(NamedTuple):
    """The contents of one record file.

    Attributes:
        calls: In the order of its lines.
        problems: Everything that is wrong with it, in words.
        altered: Why none of its lines can be trusted: its bytes changed since it was sealed; ``""`` if they did not. A file
            that is cut short does not count as altered, because its complete lines are good.
    """

    calls: list[Call]
    problems: list[str]
    altered: str = ""


def read_records(folder: Path, name: str, seal: FileSeal | None, sites: Sequence[str]) -> RecordFile:
    """Read one record file.

    Args:
        folder: The dump.
        name: The file, relative to the dump.
        seal: Size and checksum; ``None`` if it was never sealed.
        sites: Places in the source; lines refer to them by index.
    """
    calls: list[Call] = []
    torn: list[str] = []
    number = 0
    try:
        with collector_off() as made, ThreadPoolExecutor(1) as beside:  # hashing releases the interpreter's lock
            problem = beside.submit(_find_seal_problem, folder / name, name, seal)
            for piece in _read_pieces(folder / name):
                number = _read_piece(piece, name, number, calls, torn, sites)
            damage, is_trusted = problem.result()
            made.append(len(calls))
    except FileNotFoundError:
        return RecordFile(calls, [f"{name} is missing"])
    except OSError as error:
        return RecordFile(calls, [*torn, f"{name} cannot be read: {error.strerror}"])
    return RecordFile(calls, [damage, *torn] if damage else torn, "" if is_trusted else damage)


def _read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines; the last piece may end in a line that is cut short."""
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
    """Read the lines of a piece into ``calls``, damaged ones into ``torn``, and return the number of the piece's last line.

    ``number`` is that of the last line before the piece, counted from 1.
    """
    place = rank_and_step_of(name)
    lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    try:
        parsed = parse_calls(piece, sites, place)
    except (ValueError, RecursionError):
        parsed = []
    if len(parsed) == lines:  # the decoder skips empty lines, which are damage
        calls += parsed
        return number + lines
    for count, line in enumerate(piece.removesuffix(b"\n").split(b"\n"), start=number + 1):
        try:
            calls.append(parse_call(line, sites, place))
        except ValueError as error:  # noqa: PERF203  only the lines of a damaged piece come here
            torn.append(f"{name}:{count} is torn: {error}")
    return number + lines


def _find_seal_problem(path: Path, name: str, seal: FileSeal | None) -> tuple[str, bool]:
    """Check a file against its seal; return what is wrong (``""``: nothing), and whether its lines can be trusted.

    Raises:
        OSError: It cannot be read.
    """
    if seal is None:
        return "", True
    length = len(seal.blake2b) // 2  # two hex digits a byte; blake2b refuses sizes other than 1 to 64
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
        place: Rank and step of the file; ``None`` accepts lines of any rank and step.

    Raises:
        ValueError: A line is torn or has a wrong value; :func:`parse_call` on each line says which.
    """
    return [_make_call(line, sites, place, _parse_arguments(line.arguments)) for line in _DECODER.decode_lines(lines)]


def parse_call(line: bytes | str, sites: Sequence[str], place: tuple[int, int] | None = None) -> Call:
    """Read one line. It accepts all that Python's JSON does, such as half a surrogate pair in a name; ``parse_calls`` does not.

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
    intern, site = sys.intern, line.site  # millions of calls have a few thousand names: each is kept in memory once
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
    """Set ``whose`` of each record of a line to its call; in place, although records are frozen, because copies take time."""
    set_field, intern = msgspec.structs.force_setattr, sys.intern
    module, operator = intern(line.module), intern(operator_of(line.level, line.operator))
    call, ordinal, phase, step, rank, order = line.call, line.ordinal, line.phase, line.step, line.rank, line.order
    for role, records in zip(ROLES, (line.inputs, line.outputs), strict=True):
        if not records:
            continue
        whose = CallRole(module, call, operator, ordinal, phase, role, step, rank, order)
        for record in records:
            if len(record.shape) > _FEW and math.prod(record.shape) > _MOST_ELEMENTS:
                raise ValueError(f"a tensor of {len(record.shape)} dimensions has more elements than any memory")
            set_field(record, "whose", whose)
            # Tensors go from call to call, and from side to side where they agree: what names and describes them is kept once.
            set_field(record, "dtype", intern(record.dtype))
            set_field(record, "content", intern(record.content))
            set_field(record, "shape", _share_shape(record.shape))
            set_field(record, "index", intern(record.index))
            if record.weight:
                set_field(record, "weight", intern(record.weight))
            if record.source is not None:
                set_field(record, "source", (record.source[0], intern(record.source[1])))


def _share_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first of equal shapes."""
    if len(_shapes) > _SHAPES_KEPT:
        _shapes.clear()
    return _shapes.setdefault(shape, shape)


def _parse_arguments(raw: msgspec.Raw) -> dict[str, str]:
    """Return the arguments of a line; equal texts share one dictionary.

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

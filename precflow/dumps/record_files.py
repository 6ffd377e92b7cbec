"""Record files: read in pieces, checked against their seal beside it; torn lines are told one by one."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from precflow.agent import intake
from precflow.dumps.collector import collector_off
from precflow.dumps.header import FileSeal
from precflow.dumps.parsing import parse_call, parse_calls
from precflow.dumps.places import place_of
from precflow.dumps.records import Call

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
            problem = beside.submit(_seal_problem, folder / name, name, seal)
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
    place = place_of(name)
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


def _seal_problem(path: Path, name: str, seal: FileSeal | None) -> tuple[str, bool]:
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

"""Record files: read in pieces, checked against their seal in the same pass; torn lines are told one by one."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from precflow.dumps.header import FileSeal
from precflow.dumps.parsing import parse_call, parse_calls
from precflow.dumps.places import place_of
from precflow.dumps.records import Call

_CHUNK = 1 << 22  # bytes; what is decoded before it becomes records takes some ten times as much for a moment


def read_records(folder: Path, name: str, seal: FileSeal | None, sites: Sequence[str]) -> tuple[list[Call], list[str]]:
    """Return the calls of one record file in the order of its lines, and everything that is wrong with it.

    Args:
        folder: The dump.
        name: The file, relative to the dump.
        seal: Size and checksum; ``None`` where it was never sealed.
        sites: Places in the source, which lines index.
    """
    calls: list[Call] = []
    torn: list[str] = []
    digest = hashlib.blake2b(digest_size=_digest_size(seal))
    size = number = 0
    try:
        with _collector_off():
            for piece in _pieces(folder / name):
                digest.update(piece)
                size += len(piece)
                number = _read_piece(piece, name, number, calls, torn, sites)
    except FileNotFoundError:
        return calls, [f"{name} is missing"]
    except OSError as error:
        return calls, [*torn, f"{name} cannot be read: {error.strerror}"]
    problem = _seal_problem(name, seal, size, digest.hexdigest())
    return calls, [problem, *torn] if problem else torn


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines; the last one may lack its end."""
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(_CHUNK):
            end = chunk.rfind(b"\n") + 1
            if not end:
                rest += chunk
                continue
            yield rest + chunk[:end]
            rest = chunk[end:]
        if rest:
            yield rest


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


def _digest_size(seal: FileSeal | None) -> int:
    size = len(seal.blake2b) // 2 if seal else 0
    return size if 1 <= size <= 64 else 64


def _seal_problem(name: str, seal: FileSeal | None, size: int, found: str) -> str:
    if seal is None:
        return ""
    if size != seal.bytes:
        return f"{name} is {'cut short' if size < seal.bytes else 'too long'}: {size} bytes instead of {seal.bytes}"
    return "" if found == seal.blake2b.lower() else f"{name} is damaged: its bytes do not have the checksum that was sealed"


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the garbage collector from looking through millions of new records again and again; none of them is in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

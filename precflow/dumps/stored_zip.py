"""Reads the directory of a zip archive whose entries lie in it as they are, as ``torch.save`` writes one.

A dump of another tool is thousands of small files, and Python's ``zipfile`` takes most of the time that such a file takes. This
reader knows the plain form alone: no comment, no compression, no encryption, no number of 64 bits. Of anything else it says
that it is none, and its caller asks ``zipfile``, which also says what is wrong with a damaged archive.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LARGE = 0xFFFFFFFF  # stands for a number of 64 bits, which follows elsewhere
_ENCRYPTED = 1
_PIECE = 1 << 22  # bytes


class Entry(NamedTuple):
    """One entry: its name, the place of its bytes in the file, and their checksum."""

    name: str
    begin: int
    end: int
    checksum: int


def list_entries(data: bytes | mmap.mmap) -> list[Entry] | None:
    """Return the entries of an archive; ``None`` if it does not have the plain form.

    Args:
        data: The whole file.
    """
    try:
        return list(_walk(data))
    except (struct.error, UnicodeDecodeError, _OtherFormError):
        return None


def is_whole(read: Callable[[int, int], bytes], entry: Entry) -> bool:
    """Tell whether the bytes of an entry have its checksum.

    Args:
        read: Returns the bytes of the file from one place to another.
        entry: The entry.
    """
    found = 0
    for begin in range(entry.begin, entry.end, _PIECE):
        found = zlib.crc32(read(begin, min(begin + _PIECE, entry.end)), found)
    return found == entry.checksum


class _OtherFormError(Exception):
    """The archive has another form, or is damaged."""


def _walk(data: bytes | mmap.mmap) -> Iterator[Entry]:
    end = len(data) - _END.size
    mark, disk, first_disk, here, count, size, place, comment = _END.unpack_from(data, max(end, 0))
    if (mark, disk, first_disk, comment, here) != (b"PK\5\6", 0, 0, 0, count) or place + size > end:
        raise _OtherFormError
    at = place
    for _ in range(count):
        mark, _, _, flags, method, _, _, checksum, packed, length, name, extra, said, _, _, _, header = _ENTRY.unpack_from(
            data, at
        )
        if mark != b"PK\1\2" or method or flags & _ENCRYPTED or packed != length or _LARGE in {length, header}:
            raise _OtherFormError
        text = data[at + _ENTRY.size : at + _ENTRY.size + name]
        at += _ENTRY.size + name + extra + said
        local, *_, own_name, own_extra = _LOCAL.unpack_from(data, header)
        begin = header + _LOCAL.size + own_name + own_extra
        own = data[header + _LOCAL.size : header + _LOCAL.size + own_name]
        if local != b"PK\3\4" or own != text or begin + length > place:
            raise _OtherFormError
        yield Entry(text.decode("ascii"), begin, begin + length, checksum)
    if at != place + size:
        raise _OtherFormError

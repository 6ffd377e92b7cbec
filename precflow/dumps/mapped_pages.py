"""Pages of mapped files are given back once they are read, so that memory stays bounded whatever the size of a tensor."""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_AROUND = 1 << 21  # bytes; a read may map a whole large folio, which lies in a window of memory of this size
_SMALL = 1 << 16  # bytes
_ADVICE = getattr(mmap, "MADV_DONTNEED", None)  # Linux has it; elsewhere the system decides for itself


def release(*views: npt.NDArray[Any]) -> None:
    """Unmap the pages on and around contiguous, read-only views of mapped files; reading them again brings them back.

    Views that lie near one another go together, because each call stops every processor that this process runs on. A small
    one that lies within one window is left to the one that reaches the window's end: of ten thousand small tensors few are
    asked for. Any other array is left alone: of a writable mapping this would throw changes away.
    """
    waiting: dict[int, _MappedStretch] = {}
    for values in views:
        stretch = None if values.nbytes <= _SMALL and _is_inside(address(values), values.nbytes) else _around(values)
        if stretch is None:
            continue
        before = waiting.get(id(stretch.mapping))
        if before is not None and before.first <= stretch.first <= before.last:
            stretch = _MappedStretch(stretch.mapping, before.first, max(before.last, stretch.last))
        elif before is not None:
            before.release()
        waiting[id(stretch.mapping)] = stretch
    for stretch in waiting.values():
        stretch.release()


class _MappedStretch(NamedTuple):
    """A part of a mapped file, in bytes from its beginning."""

    mapping: mmap.mmap
    first: int
    last: int

    def release(self) -> None:
        """Let the system take these pages, where it can be told so."""
        if _ADVICE is not None:
            self.mapping.madvise(_ADVICE, self.first, self.last - self.first)


def _around(values: npt.NDArray[Any]) -> _MappedStretch | None:
    """Return the windows that a view touches, ``None`` where it is not one of a file mapped for reading."""
    mapping = None if values.flags.writeable else mapping_of(values)
    if mapping is None:
        return None
    base, begin = address(np.frombuffer(mapping, np.uint8, 1)), address(values)
    window = max(_AROUND, mmap.PAGESIZE)
    first = max(begin // window * window, base)
    last = min(-(-(begin + values.nbytes) // window) * window, base + len(mapping))
    return _MappedStretch(mapping, first - base, last - base)


def _is_inside(begin: int, size: int) -> bool:
    """Say whether a stretch of memory ends in the window that it begins in, and before that ends."""
    return begin // _AROUND == (begin + size) // _AROUND


def mapping_of(values: npt.NDArray[Any]) -> mmap.mmap | None:
    """Return the mapped file that an array is a view of, where there is one and it was mapped for reading."""
    owner: Any = values
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.mode != "r":
            return None
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def address(values: npt.NDArray[Any]) -> int:
    """Return where the first element lies in memory."""
    return int(values.__array_interface__["data"][0])

"""Releases the pages of mapped files that have been read, so that memory stays bounded whatever the size of a tensor.

A mapped file needs no memory of our own, but each page that was read counts as used by the process until the system reclaims
it. The system does so only under memory pressure, and a container with a memory limit may be killed before.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_WINDOW = 1 << 21  # bytes; Linux may map a whole large folio for one read, which lies within an aligned window of this size
_SMALL_VIEW = 1 << 16  # bytes
_ADVICE = getattr(mmap, "MADV_DONTNEED", None)  # Linux; where Python does not have it, the system alone decides


def release(*views: npt.NDArray[Any]) -> None:
    """Unmap the pages on and around contiguous, read-only views of mapped files; reading them again brings them back.

    Neighbouring views are released together, because each call interrupts every processor that this process runs on. A small
    view within one window is skipped: the next view that reaches the window's end releases the whole window, so that ten
    thousand small tensors take few calls. Arrays that are not such views are ignored: releasing pages of a writable mapping
    would discard changes.
    """
    waiting: dict[int, _MappedStretch] = {}
    for values in views:
        begin = address(values)
        ends_in_same_window = begin // _WINDOW == (begin + values.nbytes) // _WINDOW
        stretch = None if values.nbytes <= _SMALL_VIEW and ends_in_same_window else _find_windows(values)
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
    """A part of a mapped file; ``first`` and ``last`` (exclusive) are bytes from its beginning."""

    mapping: mmap.mmap
    first: int
    last: int

    def release(self) -> None:
        """Tell the system that these pages are no longer needed, where Python has a call for it."""
        if _ADVICE is not None:
            self.mapping.madvise(_ADVICE, self.first, self.last - self.first)


def _find_windows(values: npt.NDArray[Any]) -> _MappedStretch | None:
    """Return the windows that a view touches; ``None`` if it is not a view of a file mapped for reading."""
    mapping = None if values.flags.writeable else mapping_of(values)
    if mapping is None:
        return None
    # Windows are aligned in memory, `madvise` counts from the beginning of the file. An mmap does not say where it lies in
    # memory, but an array over it does.
    base, begin = address(np.frombuffer(mapping, np.uint8, 1)), address(values)
    window = max(_WINDOW, mmap.PAGESIZE)
    first = max(begin // window * window, base)
    last = min(-(-(begin + values.nbytes) // window) * window, base + len(mapping))
    return _MappedStretch(mapping, first - base, last - base)


def mapping_of(values: npt.NDArray[Any]) -> mmap.mmap | None:
    """Return the mapping of a file opened for reading that an array is a view of; ``None`` for any other array."""
    owner: Any = values  # a view of a view of ... of a memmap, whose own base is the mapping
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.mode != "r":
            return None
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner  # an array over a mapping holds it so
    return owner if isinstance(owner, mmap.mmap) else None


def address(values: npt.NDArray[Any]) -> int:
    """Return the address in memory of an array's first element."""
    return int(values.__array_interface__["data"][0])

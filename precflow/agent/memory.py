"""Keeps memory that tensors have freed for the next tensors.

The C library hands freed memory back to the system as soon as some tens of megabytes are free, and the system fills every page
with zeros before it hands it out again. An agent that records or computes again allocates the same few megabytes for each
call, so half of its time in the system went there. What is kept is at most a gigabyte, and large tensors go back at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc: malloc.h
_KEPT = 1 << 30  # bytes that may stay free at the end of the heap
_LARGE = 1 << 25  # bytes; from here on an allocation has pages of its own. The most that every glibc takes.
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")  # variables by which users set it


def keep_freed() -> None:
    """Let this process keep freed memory; does nothing where users have set it, or where the C library is not glibc."""
    if sys.platform != "linux" or any(name in os.environ for name in _OWN):
        return
    with suppress(OSError, AttributeError):  # another C library has no mallopt
        library = ctypes.CDLL(None)
        # The second alone would be worse than nothing: either of them ends the automatic growth of the first.
        if library.mallopt(_M_MMAP_THRESHOLD, _LARGE):
            library.mallopt(_M_TRIM_THRESHOLD, _KEPT)

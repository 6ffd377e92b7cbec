"""Memory figures of the emulated device: those of the host, or 0 for what would have to be tracked per device."""

from __future__ import annotations

import os
from typing import Any, Dict, Tuple

from precflow.agent.emulated import ordinal


def total_memory() -> int:
    """Return the bytes of physical memory of the host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def mem_get_info(device: Any = None) -> Tuple[int, int]:
    """Return free and total bytes of the host: the emulated device lives there."""
    ordinal.index_of(device)  # raises for a device that does not exist
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), total_memory()


def memory_allocated(device: Any = None) -> int:
    """Return 0: memory belongs to the host's allocator and is not tracked per device."""
    ordinal.index_of(device)
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def memory_stats(device: Any = None) -> Dict[str, int]:
    """Return an empty table: nothing is tracked."""
    ordinal.index_of(device)
    return {}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: ARG001, FBT001, FBT002  torch_npu's signature
    """Return one line that says why there is no summary."""
    return "npu:%d is emulated on the host: its memory is not tracked" % ordinal.index_of(device)


def empty_cache() -> None:
    """Do nothing: there is no cache."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Do nothing, except refuse a device that does not exist."""
    ordinal.index_of(device)


reset_max_memory_allocated = reset_peak_memory_stats

"""Files that are looked at once they are open, so that nothing else is read in their place."""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

_MADE_UP = ("/proc", "/sys")  # file systems whose regular files are none: reading one may wait for ever, or never end


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    A FIFO would wait for a writer, a device may never end, and files below ``/proc`` call themselves regular and do either.

    Raises:
        OSError: It cannot be opened, or is none (``EINVAL``).
    """
    _demand_regular(path.stat(), path)  # opening a device may do something already
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        _demand_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _demand_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_dev in _devices_made_up():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


@lru_cache(maxsize=1)
def _devices_made_up() -> frozenset[int]:
    found = {Path(folder).stat().st_dev for folder in _MADE_UP if Path(folder).is_dir()}
    return frozenset(found - {Path("/").stat().st_dev})

"""The call that a side began last, in a small file: it is still there when the process was killed, hangs or has crashed.

Record lines wait in memory until their tensors are measured, so the last ones are lost then. This file is mapped into memory:
what is written to it survives the process, and writing takes a microsecond.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Optional

from precflow.agent.contract import LAST_CALL_BYTES, LAST_CALL_FILE


class LastCall:
    """The file of one rank; it is created at the first call and removed by :meth:`close`.

    Args:
        folder: Folder of the dump.
        rank: Rank of this process.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._path = os.path.join(folder, LAST_CALL_FILE % rank)
        self._map: Optional[mmap.mmap] = None
        self._process = os.getpid()
        with suppress(OSError):  # of an attempt that was killed
            os.remove(self._path)

    def note(self, text: str) -> None:
        """Write what begins now; nothing happens in a forked child, or if the file cannot be made."""
        if self._map is None:
            with suppress(OSError, ValueError):  # it only helps after a crash: a full disk is reported when a record is written
                with open(self._path, "wb") as file:
                    file.write(bytes(LAST_CALL_BYTES))
                with open(self._path, "r+b") as file:
                    self._map = mmap.mmap(file.fileno(), LAST_CALL_BYTES)
        if self._map is None or os.getpid() != self._process:
            return
        data = text.encode("utf-8", "backslashreplace")[: LAST_CALL_BYTES - 1] + b"\0"
        self._map[: len(data)] = data

    def close(self) -> None:
        """Remove the file: nothing is running any more."""
        if self._map is not None:
            self._map.close()
            self._map = None
        with suppress(OSError):
            os.remove(self._path)

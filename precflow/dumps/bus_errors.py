"""A file that is cut while it is read: the system ends the process for it, which says so first.

Shards are mapped. Where a mapped file gets shorter (on a network folder, by a copy that begins anew), or its disk goes away,
the next look at what is gone is a bus error: no exception, and without this no word either. Python cannot be asked to handle
it, because it cannot go on; a handler of the C library can say what happened and leave as what could not be done leaves.
That is for the command line to ask for: a program that only imports precflow has signals of its own.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import signal
import sys
from typing import Any

EXIT_CODE = 2
MESSAGE = """ a file of a dump was cut short, or its disk went away, while it was read
   make sure that nobody writes there, then the same command: it goes on behind what is finished, and names the file
"""

_handlers: list[Any] = []  # the C library has only their addresses


@functools.cache
def explain_bus_errors() -> None:
    """From now on, leave with a message and exit code 2 where a mapped file ends before what is read of it; Linux only.

    A process in which ``faulthandler`` is on has its own way of telling, and keeps it.
    """
    if sys.platform != "linux" or faulthandler.is_enabled():
        return
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_leave)
    _handlers.append(handler)
    ctypes.CDLL(None).signal(int(signal.SIGBUS), handler)


def _leave(_: int) -> None:
    shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a spinner has hidden the cursor
    os.write(2, f"{shown}{MESSAGE}".encode())
    os._exit(EXIT_CODE)

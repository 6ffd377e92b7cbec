"""Says what happened when a mapped file is cut short while it is read, before the system ends the process for it.

Shards are mapped. If a mapped file gets shorter (on a network folder, by a copy that starts again), or its disk goes away,
reading the missing part is a bus error: not an exception, and without this module not even a message. A handler in Python
would never run, because the failing instruction cannot be left; a handler of the C library can print a message and exit with
the code for what could not be done. Only the command line installs it: a program that imports precflow has signals of its
own.
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
    """From now on, exit with a message and code 2 if a mapped file ends before what is read of it; Linux only.

    If ``faulthandler`` is on, it reports bus errors itself, and nothing is changed.
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

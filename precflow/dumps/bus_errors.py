"""Prints a message and exits if a mapped file is cut short while it is read, where the system would just kill the process.

Shards are mapped into memory. If a mapped file gets shorter (a copy onto a network folder starts again) or its disk goes away,
reading the missing part raises no exception: the system sends SIGBUS, which ends the process without a message. Python's
``signal.signal`` cannot help: it only notes the signal and runs the Python function after the current instruction, but the
failing read is repeated forever. So the handler is registered with the C library and runs at once. Only the command line
installs it, because a program that imports precflow may handle signals in its own way.
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
   make sure that nobody writes there, then the same command: it goes on after what is finished, and names the file
"""

_handlers: list[Any] = []  # kept alive here: the C library knows only their addresses, and ctypes would free them


@functools.cache
def explain_bus_errors() -> None:
    """From now on, exit with a message and code 2 if a mapped file ends before the part that is being read; Linux only.

    If ``faulthandler`` is on, it already reports bus errors, so its handler stays.
    """
    if sys.platform != "linux" or faulthandler.is_enabled():
        return
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_leave)
    _handlers.append(handler)
    ctypes.CDLL(None).signal(int(signal.SIGBUS), handler)


def _leave(_: int) -> None:
    # Only os.write and os._exit: the process may have been stopped anywhere, so buffered output and cleanup are not safe here.
    shown = "\n" if os.isatty(2) else ""  # behind the bar of a run
    os.write(2, f"{shown}{MESSAGE}".encode())
    os._exit(EXIT_CODE)

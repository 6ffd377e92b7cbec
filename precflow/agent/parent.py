"""Not outliving the judge: an agent whose judge was killed would keep a device busy for a result that nobody reads."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; end now if that has happened already.

    Only what the judge started directly can be bound: behind a launcher the parent is the launcher, and the judge passes
    no number.

    Args:
        parent: Process id of the judge.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):  # not Linux: the judge's own clean-up has to do
        return
    if os.getppid() != parent:
        raise SystemExit(2)

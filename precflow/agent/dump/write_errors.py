"""Error messages for a dump that cannot be written: they name the folder, the bytes needed and the next step."""

from __future__ import annotations

import errno
import shutil
from typing import Sequence

from precflow.agent.failures import AgentError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk full, quota used up, file larger than file system or ulimit allow
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_FOREIGN = (errno.ELOOP, errno.EEXIST)  # a link, or something that no writer has made, stands in the place of a step


class WriteError(AgentError):
    """A dump cannot be written any further; what is already written stays readable.

    ``kind`` is ``disk_full``, ``read_only``, ``budget``, ``busy``, ``unwritable`` or, for a rank that did not finish,
    ``workload``. The message names the folder and what was needed.
    """


def write_error(problem: OSError, folder: str, needed: int) -> WriteError:
    """Return the error for a dump in ``folder`` that failed with ``problem`` when it needed ``needed`` more bytes."""
    if problem.errno in _FULL:
        message = "no space left in %s: %s needed, %s free" % (folder, bytes_text(needed), _free_text(folder))
        return WriteError("disk_full", message, "free space there, name another store, or take less: capture.level=[module]")
    if problem.errno in _REFUSED:
        message = "%s cannot be written to (%s): %s needed" % (folder, problem.strerror, bytes_text(needed))
        return WriteError("read_only", message, "make the folder writable or name another store")
    if problem.errno in _FOREIGN:
        message = "%s is where a dump is to be written: %s" % (problem.filename, problem.strerror)
        return WriteError("unwritable", message, "nothing was deleted; name another folder for the dump, or move it away")
    message = "writing %s to %s failed: %s" % (bytes_text(needed), folder, problem)
    return WriteError("unwritable", message, "look at the disk, or name another store")


def over_budget(folder: str, allowed: int, written: int, needed: int) -> WriteError:
    """Return the error for a dump that would exceed its budget; all sizes in bytes."""
    message = "the dump in %s would exceed its budget: %s allowed, %s written, %s more needed" % (
        folder,
        bytes_text(allowed),
        bytes_text(written),
        bytes_text(needed),
    )
    return WriteError("budget", message, "raise capture.budget, narrow capture.scope, or take capture.level=[module]")


def incomplete_rank(folder: str, rank: int, found: Sequence[int], wanted: Sequence[int]) -> WriteError:
    """Return the error for a dump of several processes in which one rank did not finish the steps of the others."""
    steps = ", ".join(map(str, found)) or "none"
    message = "rank %d did not finish in %s: it has steps %s, expected %s" % (rank, folder, steps, ", ".join(map(str, wanted)))
    return WriteError("workload", message, "look at what its process raised, then run all of them again")


def bytes_text(count: int) -> str:
    """Return a number of bytes as readable text, in powers of 1000: ``64.0 MB``."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return "%d bytes" % count if unit == "bytes" else "%.1f %s" % (value, unit)


def _free_text(folder: str) -> str:
    try:
        return bytes_text(shutil.disk_usage(folder).free)
    except OSError:
        return "an unknown number of bytes"

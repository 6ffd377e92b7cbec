"""The driver of the emulated device: it fails as that of an NPU does, and writes logs in the manner of one.

Logs lie where those of Ascend lie: in ``debug/plog`` below the folder that ``ASCEND_PROCESS_LOG_PATH`` names, one file for each
process, with lines of the levels from ``ASCEND_GLOBAL_LOG_LEVEL`` on. Without that folder nothing is written.
"""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

WAYS = ("operator", "memory", "device", "crash", "hang")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_TOTAL = 32 << 30  # bytes that the device claims to have
_ERROR = 507011  # of the runtime: a task has failed on the device


def fail(how: str, operator: str, size: int) -> NoReturn:
    """Fail as a device does.

    Args:
        how: One of ``WAYS``.
        operator: Name of the aten operator.
        size: Bytes of its arguments.

    Raises:
        NotImplementedError: ``operator``: as torch says that a backend lacks one.
        RuntimeError: ``memory``, ``device``: as the runtime says it.
    """
    log(1, "RUNTIME", "launch of %s" % operator)
    if how == "operator":
        message = "Could not run 'aten::%s' with arguments from the 'NPU' backend. This could be because the operator doesn't"
        raise NotImplementedError((message + " exist for this backend.") % operator)
    if how == "memory":
        log(3, "RUNTIME", "halMemAlloc failed, size=%d, drvRetCode=6" % max(size, 1 << 20))
        message = "NPU out of memory. Tried to allocate %.2f MiB (NPU 0; %.2f GiB total capacity; 0 bytes free)"
        raise RuntimeError(message % (max(size, 1 << 20) / (1 << 20), _TOTAL / (1 << 30)))
    log(2, "RUNTIME", "stream 2 does not answer")
    log(3, "RUNTIME", "task of %s failed, stream_id=2, error code=%d" % (operator, _ERROR))
    log(3, "ASCENDCL", "synchronize failed, runtime result = %d" % _ERROR)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    while how in ("crash", "hang"):
        time.sleep(60)
    raise RuntimeError("NPU function error: task of aten::%s failed, error code is %d" % (operator, _ERROR))


def log(level: int, part: str, text: str) -> None:
    """Write a line into the log of this process.

    Args:
        level: 0 DEBUG to 3 ERROR.
        part: Part of the driver that writes it.
        text: What it says.
    """
    folder = os.environ.get("ASCEND_PROCESS_LOG_PATH", "")
    if not folder or level < int(os.environ.get("ASCEND_GLOBAL_LOG_LEVEL") or 3):
        return
    place = os.path.join(folder, "debug", "plog")
    os.makedirs(place, exist_ok=True)
    now = time.time()
    stamp = time.strftime("%Y-%m-%d-%H:%M:%S", time.localtime(now)) + ".%03d.000" % (now % 1 * 1000)
    line = "[%s] %s(%d,python):%s [emulated.cc:1]%d %s\n" % (_LEVELS[level], part, os.getpid(), stamp, os.getpid(), text)
    with open(os.path.join(place, "plog-%d_emulated.log" % os.getpid()), "a", encoding="utf-8") as file:
        file.write(line)

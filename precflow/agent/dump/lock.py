"""One writer a dump and rank: a lock that the system lets go of when its process dies, and a file that says whose it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import weakref
from typing import Any, Dict, Optional

from precflow.agent import intake
from precflow.agent.dump.write_errors import WriteError

_BOOT = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
_held: weakref.WeakValueDictionary[str, WriterLock] = weakref.WeakValueDictionary()  # the system lets one process lock twice


class WriterLock:
    """The right to write one rank of a dump; :meth:`release` gives it back, and so does the death of the process.

    Args:
        path: The lock file. It is left behind by a process that was killed, and taken over.

    Raises:
        WriteError: ``busy``: a live process has it, or one of another machine of which nobody knows.
        OSError: The file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self._descriptor: Optional[int] = None
        if self.path in _held:
            raise _busy(self.path, {"pid": os.getpid(), "host": socket.gethostname()})
        while self._descriptor is None:
            self._descriptor = self._take()
        me = json.dumps(_me()).encode("ascii")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, me, 0)
        _held[self.path] = self

    def release(self) -> None:
        """Let go, and remove the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _held.pop(self.path, None)
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # before it is free: who gets a file that is gone opens it anew
        os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]
            self._descriptor = None

    def _take(self) -> Optional[int]:
        """Return the locked file, ``None`` where it was removed meanwhile."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _claim(descriptor, self.path)
            if os.stat(self.path).st_ino != os.fstat(descriptor).st_ino:
                os.close(descriptor)
                return None
        except FileNotFoundError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _claim(descriptor: int, path: str) -> None:
    """Lock the file, or say who has it."""
    owner, locked = _owner(descriptor), _lock(descriptor)
    if locked is False or not _dead(owner, locked=bool(locked)):
        raise _busy(path, owner)


def _lock(descriptor: int) -> Optional[bool]:
    """Lock the file and tell whether that went; ``None`` where the file system has no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _dead(owner: Dict[str, Any], *, locked: bool) -> bool:
    """Tell whether the owner that the file names is gone, so that its dump can be gone on with.

    A lock that could be had tells it on the same machine. From another one it tells nothing: not every file system carries
    locks between machines. Without locks the number of the process tells it, where processes are numbered alike.
    """
    if not owner:
        return True
    me = _me()
    same_boot = bool(me["boot"]) and owner.get("boot") == me["boot"]
    if not same_boot:
        return bool(owner.get("host") == me["host"])
    return locked or (owner.get("namespace") == me["namespace"] and not _alive(owner.get("pid")))


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _me() -> Dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot(), "namespace": _namespace()}


def _boot() -> str:
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink(_NAMESPACE)
    except OSError:
        return ""


def _owner(descriptor: int) -> Dict[str, Any]:
    try:
        found = intake.parse_json(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _busy(path: str, owner: Dict[str, Any]) -> WriteError:
    who = "process %s on %s" % (owner.get("pid", "?"), owner.get("host", "?")) if owner else "a process that has just started"
    message = "%s is being written by %s (%s)" % (os.path.dirname(path), who, os.path.basename(path))
    return WriteError("busy", message, "wait for it or stop it; if it is gone, remove %s" % path)

"""One writer per dump and rank: a file lock that the system releases when its process dies, and that names its owner."""

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
# Locks of this process by path. POSIX locks belong to the process, not to the descriptor: a second lockf of the same process
# succeeds, and closing any descriptor of the file releases the lock. So a file in here must not even be opened again.
_held: weakref.WeakValueDictionary[str, WriterLock] = weakref.WeakValueDictionary()


class WriterLock:
    """The exclusive right to write one rank of a dump; ends with :meth:`release` or with the process.

    Args:
        path: The lock file. A process that was killed leaves it behind; the next writer takes it over.

    Raises:
        WriteError: ``busy``: a live process holds the lock, or a process of another machine, which may be alive or not.
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
        """Release the lock and remove its file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _held.pop(self.path, None)
        with contextlib.suppress(OSError):
            # Remove the file while it is still locked. The other way round, another process could lock it in between and
            # then lose its file. One that has the removed file open notices that in _take and opens a new one.
            os.unlink(self.path)
        os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]
            self._descriptor = None

    def _take(self) -> Optional[int]:
        """Return a descriptor of the locked file; ``None`` if the file was removed meanwhile and the caller must try again."""
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
    """Lock the file, or raise ``busy`` with the name of its owner."""
    owner, locked = _owner(descriptor), _lock(descriptor)
    if locked is False or not _dead(owner, locked=bool(locked)):
        raise _busy(path, owner)


def _lock(descriptor: int) -> Optional[bool]:
    """Try to lock the file and tell whether it worked; ``None`` if the file system has no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES for a lock that another process holds
        return False
    except OSError:
        return None
    return True


def _dead(owner: Dict[str, Any], *, locked: bool) -> bool:
    """Tell whether the owner named in the file is gone, so that this process may continue its dump.

    On the same machine, having got the lock proves it. For an owner on another machine it proves nothing: not every file
    system shares locks between machines. Without locks, the owner's process number is looked up, provided that both processes
    are in the same PID namespace (a container numbers its processes anew).
    """
    if not owner:
        return True
    me = _me()
    same_boot = bool(me["boot"]) and owner.get("boot") == me["boot"]
    if not same_boot:
        # The same host name with another boot id: this machine was restarted, so the owner cannot be alive. Without boot ids
        # (no /proc) a restart cannot be told, and only the lock itself protects a live owner.
        return bool(owner.get("host") == me["host"])
    return locked or (owner.get("namespace") == me["namespace"] and not _alive(owner.get("pid")))


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)  # signal 0 is not delivered, only checked
    except ProcessLookupError:
        return False
    except OSError:  # EPERM: the process exists and belongs to another user
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

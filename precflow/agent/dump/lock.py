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
            raise _busy_error(self.path, {"pid": os.getpid(), "host": socket.gethostname()})
        while self._descriptor is None:
            self._descriptor = self._take()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(_describe_process()).encode("ascii"), 0)
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
            owner, locked = _read_owner(descriptor), _try_lock(descriptor)
            if locked is False or not _is_gone(owner, locked=bool(locked)):
                raise _busy_error(self.path, owner)  # noqa: TRY301  the handler below closes the file
            # Another writer may have removed its file between our open and our lock. Then we hold the lock of a file that no
            # longer has a name, and a third writer could create and lock a new one beside us.
            if os.stat(self.path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None


def _try_lock(descriptor: int) -> Optional[bool]:
    """Try to lock the file and tell whether it worked; ``None`` if the file system has no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES for a lock that another process holds
        return False
    except OSError:
        return None
    return True


def _is_gone(owner: Dict[str, Any], *, locked: bool) -> bool:
    """Tell whether the owner named in the file is gone, so that this process may continue its dump.

    On the same machine, having got the lock proves it. For an owner on another machine it proves nothing: not every file
    system shares locks between machines. Without locks, the owner's process number is looked up, provided that both processes
    are in the same PID namespace (a container numbers its processes anew).
    """
    if not owner:
        return True
    me = _describe_process()
    same_boot = bool(me["boot"]) and owner.get("boot") == me["boot"]
    if not same_boot:
        # The same host name with another boot id: this machine was restarted, so the owner cannot be alive. Without boot ids
        # (no /proc) a restart cannot be told, and only the lock itself protects a live owner.
        return bool(owner.get("host") == me["host"])
    return locked or (owner.get("namespace") == me["namespace"] and not _is_running(owner.get("pid")))


def _is_running(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)  # signal 0 is not delivered, only checked
    except ProcessLookupError:
        return False
    except OSError:  # EPERM: the process exists and belongs to another user
        return True
    return True


def _describe_process() -> Dict[str, Any]:
    """Return what tells this process from every other one, on this machine or elsewhere; ``""`` for what is not known."""
    facts: Dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname(), "boot": "", "namespace": ""}
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        facts["boot"] = file.read().strip()  # a new one at every start of the machine
    with contextlib.suppress(OSError):
        facts["namespace"] = os.readlink("/proc/self/ns/pid")
    return facts


def _read_owner(descriptor: int) -> Dict[str, Any]:
    try:
        owner = intake.parse_json(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _busy_error(path: str, owner: Dict[str, Any]) -> WriteError:
    who = "process %s on %s" % (owner.get("pid", "?"), owner.get("host", "?")) if owner else "a process that has just started"
    message = "%s is being written by %s (%s)" % (os.path.dirname(path), who, os.path.basename(path))
    return WriteError("busy", message, "wait for it or stop it; if it is gone, remove %s" % path)

"""Reading and writing files safely: only a regular file is read, and a file is written as a whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from precflow.agent.intake import open_regular

__all__ = ["open_regular", "remove_leftovers", "replacing", "stays_below", "write_bytes", "write_text"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file to write to, which replaces ``path`` at the end.

    Whoever opens ``path`` meanwhile reads the old file, and never half of the new one. After an exception the old file is
    still there and the temporary one is gone. Only a process that is killed leaves its ``.writing`` file behind.

    Raises:
        OSError: The folder cannot be written to, or the disk is full.
    """
    # Two processes or threads may write the same file at once: each writes to a name of its own, and the last one wins. The
    # name is hashed because with anything added to it, it could be longer than the file system allows.
    name = hashlib.blake2b(os.fsencode(path.name), digest_size=8).hexdigest()
    temporary = path.with_name(f".{name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes left in a folder and below: see :func:`replacing`.

    Raises:
        OSError: One cannot be deleted.
    """
    for path in folder.rglob(".*.writing"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as a whole or not at all: :func:`replacing`. Lone surrogates, which UTF-8 cannot hold, become escapes.

    Raises:
        OSError: As :func:`replacing`.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes as a whole or not at all: :func:`replacing`.

    Raises:
        OSError: As :func:`replacing`.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def stays_below(name: str) -> bool:
    """Tell whether a relative name stays in its folder; what names it may come from a stranger.

    >>> stays_below("rank0/step0/step.json"), stays_below("../x"), stays_below("/etc/passwd"), stays_below("")
    (True, False, False, False)
    """
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name

"""Packing the agent into one file, ``precflow-agent.pyz``, for interpreters in which nothing may be installed."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from precflow.errors import StoreError
from precflow.files import replacing
from precflow.version import __version__

NAME = "precflow-agent.pyz"
_PACKAGE = Path(__file__).resolve().parents[1]
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip file can hold; fixed: the same sources give the same bytes
_SHEBANG = b"#!/usr/bin/env python3\n"  # a zip file may begin with anything; with this line the file can be run as a program
_ENTRY_SCRIPT = '''\
"""Checks the interpreter before anything newer than Python 3.5 is read."""
import json
import sys

if sys.version_info < (3, 8):
    message = "the agent needs Python 3.8 or newer; %s is Python %d.%d" % ((sys.executable,) + tuple(sys.version_info[:2]))
    step = "name another interpreter for this side"
    sys.stdout.write(json.dumps({"event": "error", "kind": "unsupported", "message": message, "next_step": step}) + "\\n")
    sys.stderr.write(message + "\\n")
    sys.exit(2)

from precflow.agent.__main__ import main

sys.exit(main())
'''


def build(destination: Path) -> Path:
    """Write the agent to ``destination`` (or into it, if it is a folder) and return the file.

    The same sources give the same bytes. Written under a temporary name first.

    Raises:
        StoreError: The place cannot be written to.
    """
    path = destination / NAME if destination.is_dir() else destination
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(pack_bytes())
            temporary.chmod(0o755)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", next_step="name another place") from error
    return path


def find_or_build() -> Path:
    """Return the packed agent of this version from the user's cache; build it if it is missing.

    The name contains a hash of the content, so that another version is never run by mistake. If the cache cannot be written
    to, the agent is built in a temporary folder.
    """
    content = hashlib.blake2b(digest_size=8)
    for name, source in _list_sources():
        content.update(f"{name}\0{len(source)}\0".encode() + source)
    name = f"precflow-agent-{__version__}-{content.hexdigest()}.pyz"
    path = platformdirs.user_cache_path("precflow") / name
    if path.is_file():
        return path
    try:
        return build(path)
    except StoreError:
        return build(Path(tempfile.mkdtemp(prefix="precflow-")) / name)


def pack_bytes() -> bytes:
    """Return the bytes of the file: the package's version and everything below ``precflow/agent``, compressed."""
    buffer = io.BytesIO(_SHEBANG)
    buffer.seek(0, os.SEEK_END)
    with zipfile.ZipFile(buffer, "a", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, source in _list_sources():
            entry = zipfile.ZipInfo(name, date_time=_TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, source)
    return buffer.getvalue()


def _list_sources() -> list[tuple[str, bytes]]:
    """Return name and content of each file in the packed agent, in its order."""
    files = (_PACKAGE / "__init__.py", _PACKAGE / "version.py", *sorted((_PACKAGE / "agent").rglob("*.py")))
    sources = [(file.relative_to(_PACKAGE.parent).as_posix(), file.read_bytes()) for file in files]
    return [("__main__.py", _ENTRY_SCRIPT.encode()), *sources]

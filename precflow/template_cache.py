"""Keeps compiled templates of Jinja for the next process: to compile those of a page takes longer than to fill them in.

Compiled code is run when it is loaded. So it is taken from a folder alone that nobody but this user may write to, and a file
with a changed byte is compiled again. Without such a folder nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import jinja2
import platformdirs
from jinja2.bccache import Bucket

from precflow.files import write_bytes

_CHECKSUM = 16  # bytes
_OTHERS_MAY_WRITE = 0o022


class TemplateCache(jinja2.BytecodeCache):
    """A file for each template.

    Args:
        sources: Files that say what templates are compiled with, such as filters: Jinja computes constants as it compiles.
    """

    def __init__(self, sources: Iterable[Path]) -> None:
        digest = hashlib.blake2b(f"{jinja2.__version__} {sys.implementation.cache_tag}".encode(), digest_size=8)
        for path in sources:
            digest.update(path.read_bytes())
        folder = platformdirs.user_cache_path("precflow") / f"templates-{digest.hexdigest()}"
        self._folder = folder if _is_own(folder) else None

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a bucket its code, if it is there and whole."""
        if self._folder is None:
            return
        try:
            kept = (self._folder / bucket.key).read_bytes()
        except OSError:
            return
        if kept[:_CHECKSUM] == _checksum(kept[_CHECKSUM:]):
            bucket.bytecode_from_string(kept[_CHECKSUM:])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code of a bucket, if that is possible."""
        if self._folder is None:
            return
        code = bucket.bytecode_to_string()
        with contextlib.suppress(OSError):  # such as a full disk: the next process compiles it again
            write_bytes(self._folder / bucket.key, _checksum(code) + code)


def _checksum(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_CHECKSUM).digest()


def _is_own(folder: Path) -> bool:
    """Create a folder that only this user may open, unless it exists; tell whether nobody else may write to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return False
    return facts.st_uid == os.getuid() and not facts.st_mode & _OTHERS_MAY_WRITE and os.access(folder, os.W_OK)

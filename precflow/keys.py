"""Keys: the same declaration, the same inputs and the same version give the same name, on any machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def digest(value: Any) -> str:
    """Return 32 hex digits of plain data; the order of keys does not matter, the order of lists does."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, leaf)`` of nested plain data; empty maps and lists are leaves."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from flatten(value[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from flatten(item, f"{prefix}[{number}]")
    else:
        yield prefix, value


def changes(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Return ``(dotted key, value before, value after)`` for every leaf that differs; ``None`` where it was not there."""
    old, new = dict(flatten(before)), dict(flatten(after))
    keys = [*new, *(key for key in old if key not in new)]
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def file_digest(path: Path) -> str:
    """Return 32 hex digits over a file's bytes, or over the names and bytes of everything in a folder."""
    hasher = hashlib.blake2b(digest_size=16)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        if path.is_dir():
            hasher.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                hasher.update(block)
    return hasher.hexdigest()

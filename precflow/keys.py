"""Keys that name results by what went into them: the same declaration and files give the same key on any machine."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precflow.errors import StoreError
from precflow.files import open_regular

MOST_FILES = 100_000  # in a folder whose content is a part of a key


def digest(value: Any) -> str:
    """Return 32 hex digits of plain data; the order of keys does not matter, the order of lists does."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    # A path whose bytes are not UTF-8 reaches Python with lone surrogates in it, which plain UTF-8 encoding refuses.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, leaf)`` of nested plain data. Empty maps, and lists without maps in them, are leaves."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from flatten(value[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from flatten(item, f"{prefix}[{number}]")
    else:
        yield prefix, value


def changes(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Return ``(dotted key, value before, value after)`` of every leaf that differs; ``None`` stands for a missing key."""
    old, new = dict(flatten(before)), dict(flatten(after))
    keys = [*new, *(key for key in old if key not in new)]
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def file_digest(path: Path) -> str:
    """Return 32 hex digits over a file's bytes, or over the names and bytes of every regular file in a folder.

    Links to files are followed, links to folders are not. A run asks for the same weights at each of its stages, so what was
    read is not read again while no file has another size, place on the disk, or time of change.

    Raises:
        StoreError: It is no regular file, cannot be read, or the folder has more than ``MOST_FILES`` entries.
    """
    try:
        is_folder = path.is_dir()
        files = _list_regular_files(path) if is_folder else [path]
        state = tuple((str(file), _take_state(file)) for file in files)
        known = _KNOWN.get(path)
        if known and known[0] == state:
            return known[1]
        now = time.time_ns()
        hasher = hashlib.blake2b(digest_size=16)
        for file in files:
            if is_folder:
                # No file name can hold a NUL, so it ends the name: "a" with "bc" in it differs from "ab" with "c".
                hasher.update(file.relative_to(path).as_posix().encode() + b"\0")
            with open_regular(file) as stream:
                for block in iter(functools.partial(stream.read, 1 << 20), b""):
                    hasher.update(block)
    except OSError as error:
        raise StoreError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    if all(now - facts[-1] > _SETTLED for _, facts in state):
        _KNOWN[path] = (state, hasher.hexdigest())
    return hasher.hexdigest()


_KNOWN: dict[Path, tuple[tuple[tuple[str, tuple[int, ...]], ...], str]] = {}  # path -> state of its files, digest
_SETTLED = 2_000_000_000  # nanoseconds: clocks of file systems may be so coarse that two changes have one time


def _take_state(file: Path) -> tuple[int, ...]:
    """Return what changes where a file's content does; last the time of its last change."""
    facts = file.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _list_regular_files(folder: Path) -> list[Path]:
    files, entries = [], 0
    for place, folders, names in os.walk(folder, onerror=_raise_error):
        entries += len(folders) + len(names)
        if entries > MOST_FILES:
            raise StoreError(
                f"{folder} holds more than {MOST_FILES} files: no folder of weights does", next_step="name the folder itself"
            )
        files += [Path(place, name) for name in names if Path(place, name).is_file()]
    return sorted(files)


def _raise_error(error: OSError) -> None:
    raise error  # os.walk by itself skips a folder that it cannot list, and the key would be that of a part

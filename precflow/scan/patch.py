"""A patch that ``git apply`` takes, made of bytes: encodings and line ends of the files go through it as they are."""

from __future__ import annotations

import difflib

_LATIN = "latin-1"  # one letter a byte: the diff is of lines of bytes


def make_patch(name: str, before: bytes, after: bytes) -> bytes:
    """Return the difference of one file as a unified diff, with names that are relative to the tree.

    There is no ``diff --git`` line: ``git apply`` then reads the names from the folder that it is called in, and not from the
    top of the repository.
    """
    lines = difflib.unified_diff(_split(before), _split(after), _quote(f"a/{name}"), _quote(f"b/{name}"))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text.encode(_LATIN)


def _split(data: bytes) -> list[str]:
    r"""Return lines that end with ``\n`` alone, as git counts them."""
    parts = data.decode(_LATIN).split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _quote(name: str) -> str:
    r"""Return a file name as git writes it: in quotes with octal escapes if it is not plain, and a tab behind one with a space.

    >>> _quote("a/train.py"), _quote('a/"x".py')
    ('a/train.py', '"a/\\"x\\".py"')
    """
    data = name.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return f"{name}\t" if " " in name else name
    escaped = "".join(
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in data
    )
    return f'"{escaped}"'

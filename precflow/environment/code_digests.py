"""Digests of the user's own code, so that a dump is recorded again after a change of it.

They cover the package of each factory of the workload, and the packages in the same folders that it imports. What runs write is
no code: a package may hold the run folder of its own runs, a store, or the log of its training, and would change with each run.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from precflow import keys
from precflow.errors import StoreError

_KINDS = frozenset([".py", ".pyi", ".so", ".pyd", ".json", ".yaml", ".yml", ".toml"])


# Files and folders by which a folder is known that precflow wrote: the history of runs, a store, a finished stage, a dump.
_WRITTEN = (("run.json", "run.lock"), (".making",), ("sealed.json",), ("dump.json", "rank0"))


def digest_packages(
    packages: Iterable[str], folders: Sequence[str], origins: dict[str, list[str]], *, written: Sequence[str] = ()
) -> dict[str, str]:
    """Return ``package -> 32 hex digits`` of the given packages and of every package in the folders that they import.

    Imports are read from the text, so code that is imported by a computed name is not followed.

    Args:
        packages: Top-level names.
        folders: Where the user's modules are looked for.
        origins: Package -> the files or folders where the side's own interpreter finds it. They win over ``folders``.
        written: Folders and patterns of files that runs write, as seen from the working directory; they are left out.
    """
    left_out = _LeftOut(written)
    digests: dict[str, str] = {}
    waiting = [(name, origins.get(name) or locate(name, folders)) for name in sorted(set(packages))]
    while waiting:
        name, places = waiting.pop()
        if name in digests:
            continue
        files = [file for place in places for file in left_out.list_files(Path(place))]
        digests[name] = keys.digest(list(_digest_files(files))) if files else ""
        imported = sorted({other for file in files if file.suffix == ".py" for other in _list_imports(file)} - digests.keys())
        waiting += [(other, beside) for other in imported if (beside := locate(other, folders))]
    return dict(sorted(digests.items()))


def digest_script(script: Path, *, written: Sequence[str] = ()) -> dict[str, str]:
    """Return the digest of a script and of every module beside it that it imports, by name; see :func:`digest_packages`."""
    folder = [str(script.parent)]
    beside = {name for name in _list_imports(script) if locate(name, folder)}
    own = keys.file_digest(script) if script.is_file() else ""
    return {script.name: own, **digest_packages(beside, folder, {}, written=written)}


def locate(name: str, folders: Sequence[str]) -> list[str]:
    """Return the file of a module, or the folders of a package, with or without an ``__init__.py``."""
    spec = importlib.machinery.PathFinder.find_spec(name, list(folders))  # searches the folders and imports nothing
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


class _LeftOut:
    """What of a package is no code.

    Args:
        written: As of :func:`digest_packages`.
    """

    def __init__(self, written: Sequence[str]) -> None:
        self._patterns = [os.path.abspath(os.path.expanduser(text)) for text in written if text]  # noqa: PTH100, PTH111  Path refuses some texts

    def list_files(self, place: Path) -> list[Path]:
        """Return the files of a module or package, sorted."""
        if place.is_file():
            return [place]
        root = place.absolute()
        # A run folder around the package says nothing of what is in it.
        patterns = [pattern for pattern in self._patterns if not root.is_relative_to(pattern)]
        found = []
        for here, folders, names in os.walk(root):
            # os.walk goes on only into the folders that are left in this list.
            folders[:] = [name for name in folders if not _holds_no_code(Path(here, name), patterns)]
            paths = [Path(here, name) for name in names]
            found += [path for path in paths if path.suffix in _KINDS and path.is_file() and not _matches(path, patterns)]
        return sorted(place / file.relative_to(root) for file in found)


def _holds_no_code(folder: Path, patterns: Sequence[str]) -> bool:
    if folder.name.startswith(".") or folder.name == "__pycache__" or _matches(folder, patterns):
        return True
    return any(all((folder / name).exists() for name in names) for names in _WRITTEN)


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(str(path), pattern) for pattern in patterns)


def _digest_files(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield name and digest of each file; one that is removed meanwhile is none."""
    for file in files:
        try:
            yield file.name, keys.file_digest(file)
        except StoreError:  # noqa: PERF203  the others still count
            if file.exists():
                raise


def _list_imports(file: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports anywhere in its code; none if it cannot be parsed as Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    # Relative imports (node.level > 0) stay inside the package, and all files of the package are in its digest already.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]

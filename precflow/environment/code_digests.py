"""Digests of the user's own code, so that a dump is recorded again after a change of it.

They cover the package of each factory of the workload, and the packages in the same folders that it imports.
"""

from __future__ import annotations

import ast
import importlib.machinery
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from precflow import keys

_KINDS = frozenset([".py", ".pyi", ".so", ".pyd", ".json", ".yaml", ".yml", ".toml"])


def digest_packages(packages: Iterable[str], folders: Sequence[str], origins: dict[str, list[str]]) -> dict[str, str]:
    """Return ``package -> 32 hex digits`` of the given packages and of every package in the folders that they import.

    Imports are read from the text, so code that is imported by a computed name is not followed.

    Args:
        packages: Top-level names.
        folders: Where the user's modules are looked for.
        origins: Package -> the files or folders where the side's own interpreter finds it. They win over ``folders``.
    """
    digests: dict[str, str] = {}
    waiting = [(name, origins.get(name) or locate(name, folders)) for name in sorted(set(packages))]
    while waiting:
        name, places = waiting.pop()
        if name in digests:
            continue
        files = [file for place in places for file in _list_files(Path(place))]
        digests[name] = keys.digest([[file.name, keys.file_digest(file)] for file in files]) if files else ""
        imported = sorted({other for file in files if file.suffix == ".py" for other in _list_imports(file)} - digests.keys())
        waiting += [(other, beside) for other in imported if (beside := locate(other, folders))]
    return dict(sorted(digests.items()))


def digest_script(script: Path) -> dict[str, str]:
    """Return the digest of a script and of every module beside it that it imports, by name; see :func:`digest_packages`."""
    folder = [str(script.parent)]
    beside = {name for name in _list_imports(script) if locate(name, folder)}
    return {script.name: keys.file_digest(script) if script.is_file() else "", **digest_packages(beside, folder, {})}


def locate(name: str, folders: Sequence[str]) -> list[str]:
    """Return the file of a module, or the folders of a package, with or without an ``__init__.py``."""
    spec = importlib.machinery.PathFinder.find_spec(name, list(folders))  # searches the folders and imports nothing
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def _list_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(file for file in place.rglob("*") if file.suffix in _KINDS and file.is_file())


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

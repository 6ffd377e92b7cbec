"""Kinds of logs that curves are read from, one a module; every module of this package that has a ``FORMAT`` is one.

A kind is told by what is in a file, not by its name. Kinds are tried in ascending order of :attr:`Format.order`, and the first
that recognizes a log reads it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from precflow.curves.log import Log
from precflow.curves.series import Series
from precflow.curves.wanted import Wanted


class Format(NamedTuple):
    """A kind of log.

    Attributes:
        title: Its name in messages and in the docs.
        order: Kinds with a lower one are tried first: those with an unmistakable beginning before those that fit many files.
        recognizes: Tells whether a file is of this kind.
        read: Returns a curve of the files of one run; it raises ``CurveError`` where they do not have it.
        find: Returns the files of this kind in the folder of a run, none if it wrote another kind; ``None`` for a kind that has
            no usual names there.
    """

    title: str
    order: int
    recognizes: Callable[[Log], bool]
    read: Callable[[Sequence[Log], Wanted], Series]
    find: Callable[[Path, Wanted], Sequence[Path]] | None = None


def named(*names: str) -> Callable[[Path, Wanted], Sequence[Path]]:
    """Return a way to find the file of a run by one of its usual names, the first that there is."""

    def find(folder: Path, wanted: Wanted) -> Sequence[Path]:
        """Return the file, or nothing."""
        del wanted  # such a file has every curve
        return [path for name in names if (path := folder / name).is_file()][:1]

    return find


@lru_cache(maxsize=1)
def list_formats() -> tuple[Format, ...]:
    """Return every kind of log, in the order in which they are tried."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(sorted((module.FORMAT for module in modules if hasattr(module, "FORMAT")), key=lambda one: one.order))

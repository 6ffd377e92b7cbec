"""Formats of dumps, one a module; every module of this package that has a ``FORMAT`` is one.

A format is told by what lies at a path, not by its name. Formats are tried in ascending order of :attr:`Format.order`, and the
first that recognizes a path opens it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from precflow.dumps.garbage import collector_off
from precflow.dumps.protocol import Dump

OWN = "precflow"  # title of our own format


class Opener(Protocol):
    """Opens a dump of one format."""

    def __call__(self, path: Path, *, allow_unsealed: bool) -> Dump:
        """Return the dump at a path.

        Args:
            path: The folder or file.
            allow_unsealed: Accept a dump whose writer was stopped.

        Raises:
            DumpError: There is none, or it is damaged as a whole.
        """


class Format(NamedTuple):
    """A format of dumps.

    Attributes:
        title: Its name in messages and in the docs.
        order: Formats with a lower one are tried first.
        recognizes: Tells whether there is such a dump at a path, finished or not; it reads as little as it can.
        open: Opens it.
    """

    title: str
    order: int
    recognizes: Callable[[Path], bool]
    open: Opener


@lru_cache(maxsize=1)
def list_formats() -> tuple[Format, ...]:
    """Return every format, in the order in which they are tried."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(sorted((module.FORMAT for module in modules if hasattr(module, "FORMAT")), key=lambda one: one.order))


def find_format(path: Path) -> Format | None:
    """Return the format of the dump at a path, finished or not; ``None`` if there is none that a format knows."""
    return next((each for each in list_formats() if each.recognizes(path)), None)


def read_dump(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open a dump of any format. Records and tensors are read when they are asked for.

    Args:
        path: The folder or file.
        allow_unsealed: Accept a dump whose writer was stopped; what is intact in it can be read.

    Raises:
        DumpError: There is no dump, it was never sealed, or its header is not usable.
    """
    # What no format recognizes goes to precflow's own, which says what is wrong with the path.
    found = find_format(path) or next(each for each in list_formats() if each.title == OWN)
    with collector_off():  # records have no cycles: looking for some takes a fifth of the time in which a large dump is read
        return found.open(path, allow_unsealed=allow_unsealed)

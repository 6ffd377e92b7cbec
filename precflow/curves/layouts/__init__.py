"""How loggers name the columns of their tables, one way a module; every module of this package that has a ``LAYOUT`` is one.

A layout says which columns make a curve, or that it does not know. It is asked only where no column has a usual name of the
curve, or the one that the recipe gives.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from precflow.curves.columns import Choice, Columns
from precflow.curves.wanted import Wanted, find_step_column, match_column, refuse_missing, refuse_twice


class Layout(NamedTuple):
    """A way to name columns.

    Attributes:
        title: Who names them so, for the docs.
        choose: Returns the columns of a curve, or ``None`` if they are named in another way; it raises ``CurveError`` if they
            are named so and the curve is not among them. Its last argument is how messages call the log.
    """

    title: str
    choose: Callable[[Wanted, Columns, str], Choice | None]


def choose_columns(wanted: Wanted, columns: Columns, place: str) -> Choice:
    """Return the columns that make a curve.

    Raises:
        CurveError: None do.
    """
    found = match_column(wanted, columns.names)
    if found is not None:
        refuse_twice(found, columns.names, place)
        return Choice((found,), find_step_column(wanted, columns.names, place))
    for layout in list_layouts():
        choice = layout.choose(wanted, columns, place)
        if choice is not None:
            return choice
    raise refuse_missing(wanted, columns.names, place)


@lru_cache(maxsize=1)
def list_layouts() -> tuple[Layout, ...]:
    """Return every layout; a table is of one of them at most, so that their order does not matter."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(module.LAYOUT for module in modules if hasattr(module, "LAYOUT"))

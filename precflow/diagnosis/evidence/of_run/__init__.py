"""Pieces of evidence about a run, a module each: it says what its evidence means, and gathers it.

Every module of this package is one. To add evidence about a run, add a module::

    EVIDENCE = {"dropped_rows": Evidence("rows that were dropped", "Of the model's output, on the target.")}

    def gather(run: Comparison) -> dict[str, Any]:
        ...

What could not be measured, or does not apply, is left out, so that no rule takes it for a measured value.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison


class Evidence(NamedTuple):
    """One piece of evidence.

    Attributes:
        label: The words of a screen.
        meaning: What it is, with its denominator.
        tests: What might have been the cause, if it is the share of the error's energy that this explains; ``""`` otherwise.
        unit: ``%`` for a share, which rules have as a number of one and people read as percent.
    """

    label: str
    meaning: str
    tests: str = ""
    unit: str = ""


class Piece(NamedTuple):
    """A module that gathers evidence about a run.

    Attributes:
        evidence: Name -> what it means.
        gather: Returns the evidence that there is, by these names.
    """

    evidence: Mapping[str, Evidence]
    gather: Callable[[Comparison], Mapping[str, Any]]


@lru_cache(maxsize=1)
def list_pieces() -> tuple[Piece, ...]:
    """Return every piece of evidence about a run."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(Piece(module.EVIDENCE, module.gather) for module in modules)

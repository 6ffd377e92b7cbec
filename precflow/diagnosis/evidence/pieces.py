"""Pieces of evidence, a module each: it says what its evidence means, and gathers it.

Every module of ``of_run`` gathers evidence about a run, every one of ``of_suspect`` about a call that may introduce an error.
To add evidence, add a module to one of the two::

    EVIDENCE = {"dropped_rows": Evidence("rows that were dropped", "Of the model's output, on the target.")}

    def gather(run: Comparison) -> dict[str, Any]:                            # in of_run
    def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:        # in of_suspect
        ...

What could not be measured, or does not apply, is left out, so that no rule takes it for a measured value.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from precflow.diagnosis.evidence import of_run, of_suspect


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
    """A module that gathers evidence.

    Attributes:
        evidence: Name -> what it means.
        gather: Returns the evidence that there is, by these names: of a comparison, or of a comparison and a suspect in it.
    """

    evidence: Mapping[str, Evidence]
    gather: Callable[..., Mapping[str, Any]]


@lru_cache(maxsize=1)
def list_of_run() -> tuple[Piece, ...]:
    """Return every piece of evidence about a run."""
    return _list_pieces(of_run.__name__, of_run.__path__)


@lru_cache(maxsize=1)
def list_of_suspect() -> tuple[Piece, ...]:
    """Return every piece of evidence about a suspect."""
    return _list_pieces(of_suspect.__name__, of_suspect.__path__)


def _list_pieces(package: str, path: Any) -> tuple[Piece, ...]:
    modules = [importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path)]
    return tuple(Piece(module.EVIDENCE, module.gather) for module in modules)

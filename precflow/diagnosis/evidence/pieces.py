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
import math
import pkgutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from precflow.diagnosis.evidence import of_run, of_suspect

_NEAR_ONE = 0.9  # 0.9996 and 0.9999 are far apart for a share or a scale, and both would be shown as 1
_LISTED = 5


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


def format_evidence(value: Any, unit: str = "") -> str:
    """Return a value of evidence as a person reads it; rules have it as the filters ``shown`` and, for shares, ``percent``.

    Near 1, where shares and factors are, five digits are shown; elsewhere three. Of lists the first five.

    >>> [format_evidence(value) for value in (True, 0.00123456, 0.9998, ["a", "b"], (2, 3), [])]
    ['yes', '0.00123', '0.9998', 'a, b', '2, 3', 'none']
    >>> [format_evidence(value, "%") for value in (1, 0.25, 0.99964, 0.0)]
    ['100 %', '25 %', '99.964 %', '0 %']
    """
    if unit == "%" and isinstance(value, (int, float)) and math.isfinite(value):
        return f"{100 * value:.5g} %" if _NEAR_ONE < abs(value) < 1.0 else f"{100 * value:.3g} %"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}" if _NEAR_ONE < abs(value) < 1.0 / _NEAR_ONE else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - _LISTED} more"] if len(value) > _LISTED else []
        return ", ".join([*(format_evidence(item) for item in value[:_LISTED]), *more]) or "none"
    return str(value)

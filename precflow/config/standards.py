"""The shipped tolerance standards as far as the check of a recipe needs them: their names and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from precflow import resources
from precflow.config.documents import read
from precflow.config.units import parse_number
from precflow.errors import PrecflowError

_FINEST_FIRST = ("float64", "float32", "float16", "bfloat16")


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Return the names of the standards that are shipped: the files in ``conf/standard``."""
    try:
        return tuple(sorted(file.stem for file in _folder().glob("*.yaml")))
    except PrecflowError:
        return ("default", "allclose")


def coarsest(*dtypes: str) -> str:
    """Return the element type with the fewest digits: a standard judges by it.

    >>> coarsest("float32", "float16")
    'float16'
    """
    return max(dtypes, key=lambda dtype: _FINEST_FIRST.index(dtype) if dtype in _FINEST_FIRST else -1)


def limits(name: str, dtype: str) -> Mapping[str, float]:
    """Return metric -> limit of a standard for an element type; empty where it has none, or where there is no such standard."""
    file = _folder() / f"{name}.yaml"
    if not file.is_file():
        return {}
    demanded = read(file, "standard", name).data.get("limits", {}).get(dtype, {})
    return {metric: parse_number(limit) for metric, limit in demanded.items()}


def _folder() -> Path:
    return resources.directory("conf") / "standard"

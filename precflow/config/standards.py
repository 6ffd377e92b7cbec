"""Tolerance standards as far as the check of a recipe needs them: their names and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

from precflow import resources
from precflow.config.documents import read
from precflow.config.units import parse_number
from precflow.errors import PrecflowError

_FINEST_FIRST = ("float64", "float32", "float16", "bfloat16")
_TEAM: ContextVar[tuple[Path, ...]] = ContextVar("folders of a team's standards", default=())


@contextmanager
def searching(folders: Sequence[Path]) -> Iterator[None]:
    """Know the standards in these folders too, while a recipe is checked."""
    token = _TEAM.set(tuple(folders))
    try:
        yield
    finally:
        _TEAM.reset(token)


def names() -> tuple[str, ...]:
    """Return the names of the standards that there are: the shipped ones, then those of a team."""
    shipped = _shipped()
    return (*shipped, *sorted({file.stem for folder in _TEAM.get() for file in folder.glob("*.yaml")} - set(shipped)))


def coarsest(*dtypes: str) -> str:
    """Return the element type with the fewest digits: a standard judges by it.

    >>> coarsest("float32", "float16")
    'float16'
    """
    return max(dtypes, key=lambda dtype: _FINEST_FIRST.index(dtype) if dtype in _FINEST_FIRST else -1)


def limits(name: str, dtype: str) -> Mapping[str, float]:
    """Return metric -> limit of a standard for an element type; empty where it has none, or where there is no such standard.

    What is wrong with a team's file is told where it is read in full.
    """
    file = next((file for folder in (*_TEAM.get(), _folder()) if (file := folder / f"{name}.yaml").is_file()), None)
    demanded = read(file, "standard", name).data.get("limits") if file else None
    of_type = demanded.get(dtype) if isinstance(demanded, Mapping) else None
    found = {}
    for metric, limit in of_type.items() if isinstance(of_type, Mapping) else ():
        with suppress(ValueError):
            found[metric] = parse_number(limit)
    return found


@lru_cache(maxsize=1)
def _shipped() -> tuple[str, ...]:
    try:
        return tuple(sorted(file.stem for file in _folder().glob("*.yaml")))
    except PrecflowError:
        return ("default", "allclose")


def _folder() -> Path:
    return resources.directory("conf") / "standard"

"""Tolerance standards as files: limits by element type, one YAML file each, shipped or of a team.

The check of a recipe needs their names and limits before anything is compared; :mod:`precflow.judgement.standards` makes
conditions of the same files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from precflow import resources
from precflow.config.build import build_document
from precflow.config.documents import DottedPath, PathProblems, dotted, read
from precflow.config.schema import Share
from precflow.config.sections.standard_sections import (
    Benchmark,
    LossLimits,
    OperatorLimits,
    find_benchmark_problems,
    find_loss_problems,
    find_operator_problems,
)
from precflow.config.suggestions import did_you_mean
from precflow.errors import PrecflowError, Problem
from precflow.metrics import METRICS

_JUDGING = ("limits", "operators", "benchmark", "losses")  # sections that can fail a run; a standard has one of them
_FINEST_FIRST = ("float64", "float32", "float16", "bfloat16")
_TEAM: ContextVar[tuple[Path, ...]] = ContextVar("folders of a team's standards", default=())


@contextmanager
def searching(folders: Sequence[Path]) -> Iterator[None]:
    """Include the standards in these folders while a recipe is checked."""
    token = _TEAM.set(tuple(folders))
    try:
        yield
    finally:
        _TEAM.reset(token)


def names() -> tuple[str, ...]:
    """Return the names of all standards: the shipped ones, then those of a team."""
    shipped = _list_shipped()
    return (*shipped, *sorted({file.stem for folder in _TEAM.get() for file in folder.glob("*.yaml")} - set(shipped)))


def coarsest(*dtypes: str) -> str:
    """Return the element type with the fewest digits, whose limits a standard applies.

    >>> coarsest("float32", "float16")
    'float16'
    """
    return max(dtypes, key=lambda dtype: _FINEST_FIRST.index(dtype) if dtype in _FINEST_FIRST else -1)


def limits(name: str, dtype: str) -> Mapping[str, float]:
    """Return metric -> limit of a standard for an element type; empty if the standard has none, or is not known.

    What is wrong with a team's file is reported where the file is checked in full, not here.
    """
    file = _read(name)
    return file.limits.get(dtype, {}) if file else {}


def search(folders: Sequence[Path]) -> None:
    """Include the standards in these folders from now on: those of the recipe that this process runs."""
    _TEAM.set(tuple(folders))


def are_measured(names: Iterable[str]) -> bool:
    """Tell whether a standard makes its limits of the noise floor, so that a run has to measure it."""
    return any(file is not None and file.noise is not None for file in map(_read, names))


def judges_losses(name: str) -> bool:
    """Tell whether a standard judges losses and other curves; a standard that is not known does not."""
    file = _read(name)
    return file is not None and file.losses is not None


def _read(name: str) -> StandardFile | None:
    path = find(name, _TEAM.get())
    return read_standard(path)[0] if path else None


def find(name: str, folders: Sequence[Path] = ()) -> Path | None:
    """Return the file of a standard, ``None`` if there is none; the folders are searched before the shipped one."""
    return next((path for folder in (*folders, _shipped_folder()) if (path := folder / f"{name}.yaml").is_file()), None)


@dataclass(frozen=True)
class Noise:
    """Limits that are made of the measured noise floor.

    Attributes:
        times: Element type -> how many times the noise floor a record may use.
        least: Metric -> the least floor, in half units in the last place of 1.
    """

    times: Mapping[str, Share]
    least: Mapping[str, Share]


@dataclass(frozen=True)
class StandardFile:
    """One standard as it is written.

    Attributes:
        title: One line.
        source: Where the numbers come from: repository, and commit or version.
        date: Day of the source, or on which it was read, such as ``2026-07-15``; ``""`` where none is given.
        until: Month or day until which it was in force; ``""`` if it is.
        noise: Limits in units of the noise floor; `limits` then apply to records without a floor.
        limits: Element type -> metric -> limit.
        operators: Element type -> limits of operators that were evaluated in float64.
        benchmark: Limits of the target's error in units of the reference's.
        losses: Limits of the losses of a run.
        unchecked: What the source asks for as well and is not checked, in words.
    """

    title: str
    source: str
    date: str = ""
    until: str = ""
    noise: Noise | None = None
    limits: Mapping[str, Mapping[str, Share]] = field(default_factory=dict)
    operators: Mapping[str, OperatorLimits] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    losses: LossLimits | None = None
    unchecked: tuple[str, ...] = ()


def read_standard(path: Path, dtypes: Collection[str] = ()) -> tuple[StandardFile | None, list[Problem]]:
    """Return a standard as it is written, ``None`` if it cannot be used at all, and everything that is wrong with it.

    Args:
        path: The YAML file; its name without ending is the standard's name.
        dtypes: Known element types; without any, names of element types are not checked.
    """
    document = read(path, "standard", path.stem)
    if document.problems:
        return None, list(document.problems)
    file, problems = build_document(document, StandardFile)
    found = _find_problems(file, dtypes) if file is not None else ()
    return file, [*problems, *(Problem(document.mark(key).place, dotted(key), message) for key, message in found)]


def _find_problems(file: StandardFile, dtypes: Collection[str]) -> PathProblems:
    """Yield what is wrong with values that have the right form."""
    judging = [name for name in _JUDGING if getattr(file, name)]
    if not judging:
        others = ", ".join(_JUDGING[1:])
        yield ("limits",), f"expected element types such as float32, each with metrics and their limits; or one of {others}"
    if len(judging) > 1:
        yield (judging[1],), f"a standard has one of {', '.join(_JUDGING)}; several standards stack"
    for dtype in (dtype for dtype, limits in file.limits.items() if not limits):
        yield ("limits", dtype), "expected metrics and their limits, such as {relative_l2: 2^-8}"
    yield from _find_unknown_names(file, dtypes)
    yield from find_operator_problems(file.operators)
    yield from find_benchmark_problems(file.benchmark) if file.benchmark else ()
    yield from find_loss_problems(file.losses) if file.losses else ()


def _find_unknown_names(file: StandardFile, dtypes: Collection[str]) -> PathProblems:
    """Yield names of metrics and element types that there are none of."""
    metrics: dict[DottedPath, Collection[str]] = {("limits", dtype): limits for dtype, limits in file.limits.items()}
    metrics["noise", "least"] = file.noise.least if file.noise else ()
    for path, names in metrics.items():
        for name in (name for name in names if name not in METRICS):
            yield (*path, name), f"no such metric.{did_you_mean(name, METRICS)}"
    types: dict[DottedPath, Collection[str]] = {("limits",): file.limits, ("operators",): file.operators}
    types["noise", "times"] = file.noise.times if file.noise else ()
    types["benchmark", "small"] = file.benchmark.small if file.benchmark else ()
    for path, names in types.items() if dtypes else ():
        for name in (name for name in names if name not in dtypes):
            yield (*path, name), f"is no element type; known are {', '.join(dtypes)}.{did_you_mean(name, dtypes)}"


@lru_cache(maxsize=1)
def _list_shipped() -> tuple[str, ...]:
    try:
        return tuple(sorted(file.stem for file in _shipped_folder().glob("*.yaml")))
    except PrecflowError:
        return ("default", "allclose")


def _shipped_folder() -> Path:
    return resources.directory("conf") / "standard"

"""Tolerance standards as files: limits by element type, one YAML file each, shipped or of a team.

The check of a recipe needs their names and limits before anything is compared; :mod:`precflow.judgement.standards` makes
conditions of the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from precflow import resources
from precflow.config.documents import DottedPath, display_path, dotted, read
from precflow.config.sections.standard_sections import (
    Benchmark,
    LossLimits,
    OperatorLimits,
    read_benchmark,
    read_losses,
    read_operators,
)
from precflow.config.suggestions import did_you_mean
from precflow.config.units import parse_share
from precflow.errors import PrecflowError, Problem
from precflow.metrics import METRICS

_KEYS = ("title", "source", "date", "until", "noise", "limits", "operators", "benchmark", "losses", "unchecked")
_JUDGING = ("limits", "operators", "benchmark", "losses")  # sections that can fail a run; a standard has one of them
_NOISE_KEYS = ("times", "least")
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
    path = find(name, _TEAM.get())
    return StandardFile(path).limits.get(dtype, {}) if path else {}


def search(folders: Sequence[Path]) -> None:
    """Include the standards in these folders from now on: those of the recipe that this process runs."""
    _TEAM.set(tuple(folders))


def are_measured(names: Iterable[str]) -> bool:
    """Tell whether a standard makes its limits of the noise floor, so that a run has to measure it."""
    paths = (find(name, _TEAM.get()) for name in names)
    return any(StandardFile(path).times for path in paths if path)


def judges_losses(name: str) -> bool:
    """Tell whether a standard judges losses and other curves; a standard that is not known does not."""
    path = find(name, _TEAM.get())
    return path is not None and StandardFile(path).losses is not None


def find(name: str, folders: Sequence[Path] = ()) -> Path | None:
    """Return the file of a standard, ``None`` if there is none; the folders are searched before the shipped one."""
    return next((path for folder in (*folders, _shipped_folder()) if (path := folder / f"{name}.yaml").is_file()), None)


class StandardFile:
    """One standard as it is written, with everything that is wrong with its form.

    Names of element types are not checked here: :mod:`precflow.judgement.standards` knows them.

    Args:
        path: The YAML file; its name without ending is the standard's name.

    Attributes:
        title: One line.
        source: Where the numbers come from: repository, and commit or version.
        date: Day of the source, or on which it was read, such as ``2026-07-15``; ``""`` where none is given.
        until: Month or day until which it was in force; ``""`` if it is.
        unchecked: What the source asks for as well and is not checked, in words.
        operators: Element type -> limits of operators that were evaluated in float64.
        benchmark: Limits of the target's error in units of the reference's.
        losses: Limits of the losses of a run.
        times: Element type -> how many times the noise floor a record may use; empty if the limits are not measured.
        least: Metric -> the least floor, in half units in the last place of 1; only with ``times``.
        limits: Element type -> metric -> limit. What cannot be read is left out, with a problem. In a standard with ``times``
            they apply to records without a floor.
        problems: What is wrong so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._document = document = read(path, "standard", path.stem)
        self.problems = list(document.problems)
        for key in (key for key in document.data if key not in _KEYS):
            self.report((key,), f"no such key; a standard has {', '.join(_KEYS)}")
        self.title, self.source = self._read_line("title"), self._read_line("source")
        self.date, self.until = (self._read_line(key) if key in document.data else "" for key in ("date", "until"))
        self.unchecked = self._read_unchecked()
        self.operators: Mapping[str, OperatorLimits] = read_operators(document.data.get("operators"), self.report)
        self.benchmark: Benchmark | None = read_benchmark(document.data.get("benchmark"), self.report)
        self.losses: LossLimits | None = read_losses(document.data.get("losses"), self.report)
        self.times, self.least = self._read_noise()
        judging = [key for key in _JUDGING if key in document.data]
        if len(judging) > 1:
            self.report((judging[1],), f"a standard has one of {', '.join(_JUDGING)}; several standards stack")
        demanded = document.data.get("limits", {})
        if judging in ([], ["limits"]) and (not isinstance(demanded, Mapping) or not demanded):
            self.report(("limits",), "expected element types such as float32, each with metrics and their limits")
            demanded = {}
        self.limits = {str(dtype): self._read_limits(str(dtype), metrics) for dtype, metrics in demanded.items()}

    def report(self, key: DottedPath, message: str) -> None:
        """Add a problem, at the line of the key or of the innermost key around it that has one."""
        marks = self._document.marks
        known = next((key[:length] for length in range(len(key), 0, -1) if key[:length] in marks), ())
        self.problems.append(Problem(marks[known].place if known else display_path(self.path), dotted(key), message))

    def _read_line(self, key: str) -> str:
        value = self._document.data.get(key)
        if isinstance(value, str):
            return value
        self.report((key,), "expected one line of text")
        return ""

    def _read_unchecked(self) -> tuple[str, ...]:
        value = self._document.data.get("unchecked", [])
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
        self.report(("unchecked",), "expected a list of texts: what the source asks for and is not checked")
        return ()

    def _read_noise(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return ``times`` and ``least`` of section ``noise``, both empty if there is no such section."""
        section = self._document.data.get("noise")
        if section is None:
            return {}, {}
        if not isinstance(section, Mapping) or not all(isinstance(section.get(name), Mapping) for name in _NOISE_KEYS):
            self.report(("noise",), f"expected {' and '.join(_NOISE_KEYS)}, each with names and their numbers")
            return {}, {}
        sections: list[dict[str, float]] = []
        for name in _NOISE_KEYS:
            numbers = {str(key): self._read_limit(("noise", name, str(key)), value) for key, value in section[name].items()}
            sections.append({key: number for key, number in numbers.items() if number is not None})
        times, least = sections
        for metric in (metric for metric in least if metric not in METRICS):
            self.report(("noise", "least", metric), f"no such metric.{did_you_mean(metric, METRICS)}")
        return times, {metric: number for metric, number in least.items() if metric in METRICS}

    def _read_limits(self, dtype: str, metrics: Any) -> Mapping[str, float]:
        """Return the limits for one element type."""
        if not isinstance(metrics, Mapping) or not metrics:
            self.report(("limits", dtype), "expected metrics and their limits, such as {relative_l2: 2^-8}")
            return {}
        for metric in (metric for metric in metrics if metric not in METRICS):
            self.report(("limits", dtype, str(metric)), f"no such metric.{did_you_mean(str(metric), METRICS)}")
        known = {metric: limit for metric, limit in metrics.items() if metric in METRICS}
        numbers = {metric: self._read_limit(("limits", dtype, metric), limit) for metric, limit in known.items()}
        return {metric: number for metric, number in numbers.items() if number is not None}

    def _read_limit(self, key: DottedPath, limit: Any) -> float | None:
        try:
            return parse_share(limit)
        except ValueError as error:
            self.report(key, f"{error}, got `{str(limit)[:60]}`")
            return None


@lru_cache(maxsize=1)
def _list_shipped() -> tuple[str, ...]:
    try:
        return tuple(sorted(file.stem for file in _shipped_folder().glob("*.yaml")))
    except PrecflowError:
        return ("default", "allclose")


def _shipped_folder() -> Path:
    return resources.directory("conf") / "standard"

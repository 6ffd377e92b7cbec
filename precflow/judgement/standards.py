"""Published and measured standards as data: limits by element type, one YAML file each, shipped or of a team."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow import resources
from precflow.config.documents import DottedPath, dotted, read, shown
from precflow.config.suggestions import did_you_mean
from precflow.config.units import parse_share
from precflow.dumps.dtypes import FLOATS
from precflow.errors import ConfigError, Problem
from precflow.judgement.limits import Condition
from precflow.metrics import METRICS

_KEYS = ("title", "source", "limits")


@dataclass(frozen=True, slots=True)
class Standard:
    """Limits by element type.

    Attributes:
        name: File name without ending.
        title: One line.
        source: Where the numbers come from.
        limits: Floating point type -> the conditions that all must hold.
    """

    name: str
    title: str
    source: str
    limits: Mapping[str, tuple[Condition, ...]]


def load(name: str, folders: Sequence[Path] = ()) -> Standard:
    """Read one standard.

    Args:
        name: Such as ``default``.
        folders: Folders to look in before the shipped one.

    Raises:
        ConfigError: There is no such standard, or its file is not usable.
    """
    places = [*folders, resources.directory("conf") / "standard"]
    for folder in places:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return _read(path)
    known = sorted({path.stem for folder in places for path in folder.glob("*.yaml")})
    raise ConfigError(f"there is no standard {name!r} (known: {', '.join(known)}).{did_you_mean(name, known)}")


def _read(path: Path) -> Standard:
    """Read one file, with the line of everything that is wrong with it."""
    document = read(path, "standard", path.stem)
    plain, problems = document.data, list(document.problems)

    def say(key: DottedPath, message: str) -> None:
        near = next((key[:length] for length in range(len(key), 0, -1) if key[:length] in document.marks), ())
        problems.append(Problem(document.marks[near].place if near else shown(path), dotted(key), message))

    for key in plain.keys() - set(_KEYS):
        say((key,), f"no such key; a standard has {', '.join(_KEYS)}")
    for key in ("title", "source"):
        if not isinstance(plain.get(key), str):
            say((key,), "expected one line of text")
    limits = plain.get("limits")
    if not isinstance(limits, Mapping) or not limits:
        say(("limits",), f"expected element types ({', '.join(FLOATS)}), each with metrics and their limits")
        limits = {}
    found = {dtype: _conditions(path.stem, str(dtype), metrics, say) for dtype, metrics in limits.items()}
    if problems:
        raise ConfigError(
            f"{shown(path)} is not usable as a standard", problems=problems, next_step="precflow show standard/default"
        )
    return Standard(path.stem, str(plain["title"]), str(plain["source"]), found)


def _conditions(name: str, dtype: str, metrics: Any, say: Callable[[DottedPath, str], None]) -> tuple[Condition, ...]:
    """Return the conditions for one element type; what is wrong is said and left out."""
    if dtype not in FLOATS:
        say(("limits", dtype), f"is no element type; known are {', '.join(FLOATS)}.{did_you_mean(dtype, FLOATS)}")
    if not isinstance(metrics, Mapping) or not metrics:
        say(("limits", dtype), "expected metrics and their limits, such as {relative_l2: 2^-8}")
        return ()
    conditions = []
    for metric, limit in metrics.items():
        key = ("limits", dtype, str(metric))
        if metric not in METRICS:
            say(key, f"no such metric.{did_you_mean(str(metric), METRICS)}")
            continue
        try:
            conditions.append(Condition(metric, parse_share(limit), name))
        except ValueError as error:
            say(key, f"{error}, got `{str(limit)[:60]}`")
    return tuple(conditions)

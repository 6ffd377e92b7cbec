"""Published and measured standards as data: limits by element type, one YAML file each in ``conf/standard``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from precflow import resources
from precflow.comparison.metrics import METRICS
from precflow.config.suggestions import did_you_mean
from precflow.config.units import parse_share
from precflow.dumps.dtypes import FLOATS
from precflow.errors import ConfigError
from precflow.judgement.limits import Condition


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
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        limits = {str(dtype): _conditions(path.stem, metrics) for dtype, metrics in plain["limits"].items()}
        title, source = str(plain["title"]), str(plain["source"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} is not usable as a standard: {error}") from error
    unknown = [dtype for dtype in limits if dtype not in FLOATS]
    if unknown:
        raise ConfigError(f"{path} has limits for {', '.join(unknown)}; known types are {', '.join(FLOATS)}")
    return Standard(path.stem, title, source, limits)


def _conditions(name: str, metrics: Mapping[str, Any]) -> tuple[Condition, ...]:
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise ValueError(f"no such metric: {', '.join(unknown)}")
    return tuple(Condition(metric, parse_share(limit), name) for metric, limit in metrics.items())

"""Standards as conditions: the limits of a standard's file, by element type, ready to judge records by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from precflow import resources
from precflow.config.documents import display_path
from precflow.config.standards import StandardFile, find
from precflow.config.suggestions import did_you_mean
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.errors import ConfigError
from precflow.judgement.limits import Condition


@dataclass(frozen=True, slots=True)
class Standard:
    """Limits by element type.

    Attributes:
        name: File name without ending.
        title: One line.
        source: Where the numbers come from.
        limits: Floating point type -> the conditions that all must hold; for records without a noise floor if there are
            ``measured`` ones.
        measured: Floating point type -> the conditions on records that have a floor; empty for a standard of fixed limits.
    """

    name: str
    title: str
    source: str
    limits: Mapping[str, tuple[Condition, ...]]
    measured: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)


def load(name: str, folders: Sequence[Path] = ()) -> Standard:
    """Read one standard.

    Args:
        name: Such as ``default``.
        folders: Folders to look in before the shipped one.

    Raises:
        ConfigError: There is no such standard, or its file is not usable; with the line of everything that is wrong.
    """
    path = find(name, folders)
    if path is None:
        searched = (*folders, resources.directory("conf") / "standard")
        known = sorted({path.stem for folder in searched for path in folder.glob("*.yaml")})
        raise ConfigError(f"there is no standard {name!r} (known: {', '.join(known)}).{did_you_mean(name, known)}")
    file = StandardFile(path)
    places = [*(("limits", dtype) for dtype in file.limits), *(("noise", "times", dtype) for dtype in file.times)]
    for *section, dtype in (place for place in places if place[-1] not in FLOATS):
        file.report((*section, dtype), f"is no element type; known are {', '.join(FLOATS)}.{did_you_mean(dtype, FLOATS)}")
    if file.problems:
        raise ConfigError(
            f"{display_path(path)} is not usable as a standard",
            problems=file.problems,
            next_step="precflow show standard/default",
        )
    limits = {
        dtype: tuple(Condition(metric, limit, path.stem) for metric, limit in metrics.items())
        for dtype, metrics in file.limits.items()
    }
    measured = {
        dtype: tuple(
            Condition(metric, times, path.stem, least=least * 2.0 ** -float_facts(dtype).digits)
            for metric, least in file.least.items()
        )
        for dtype, times in file.times.items()
    }
    return Standard(path.stem, file.title, file.source, limits, measured)

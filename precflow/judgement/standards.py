"""Standards as conditions: the limits of a standard's file, by element type, ready to judge records by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from precflow import resources
from precflow.config.documents import display_path
from precflow.config.sections.standard_sections import Benchmark, LossLimits, OperatorLimits, describe_origin
from precflow.config.sections.standards import find, read_standard
from precflow.config.suggestions import did_you_mean
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.errors import ConfigError
from precflow.judgement.limits import Condition


@dataclass(frozen=True, slots=True)
class Standard:
    """Limits of records by element type, and of what a standard judges instead: evaluated operators, losses of a run.

    Attributes:
        name: File name without ending.
        title: One line.
        source: Where the numbers come from.
        limits: Floating point type -> the conditions that all must hold; for records without a noise floor if there are
            ``measured`` ones.
        measured: Floating point type -> the conditions on records that have a floor; empty for a standard of fixed limits.
        operators: Floating point type -> limits of operators that were evaluated in float64.
        benchmark: Limits of the target's error in units of the reference's.
        losses: Limits of the losses of a run.
        unchecked: What its source asks for as well and is not checked.
        date: Day of the source, or on which it was read.
        until: Until when it was in force; ``""`` if it is.
    """

    name: str
    title: str
    source: str
    limits: Mapping[str, tuple[Condition, ...]]
    measured: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    operators: Mapping[str, OperatorLimits] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    losses: LossLimits | None = None
    unchecked: tuple[str, ...] = ()
    date: str = ""
    until: str = ""

    @property
    def judges_records(self) -> bool:
        """It has limits of records."""
        return bool(self.limits or self.measured)

    @property
    def judges_operators(self) -> bool:
        """It has limits of operators that were evaluated in float64."""
        return bool(self.operators or self.benchmark)

    @property
    def dated(self) -> str:
        """Its name, with date and last day if it has them: ``cann_single (2026-07-15, until 2026-07)``."""
        when = describe_origin("", self.date, self.until)
        return f"{self.name} ({when})" if when else self.name

    @property
    def origin(self) -> str:
        """Date, until when it was in force, and source: ``2026-07-15, hicann/opbase at adbe441``."""
        return describe_origin(self.source, self.date, self.until)


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
    file, problems = read_standard(path, FLOATS)
    if file is None or problems:
        raise ConfigError(
            f"{display_path(path)} is not usable as a standard", problems=problems, next_step="precflow show standard/default"
        )
    limits = {
        dtype: tuple(Condition(metric, limit, path.stem) for metric, limit in metrics.items())
        for dtype, metrics in file.limits.items()
    }
    measured = {
        dtype: tuple(
            Condition(metric, times, path.stem, least=least * 2.0 ** -float_facts(dtype).digits)
            for metric, least in file.noise.least.items()
        )
        for dtype, times in (file.noise.times.items() if file.noise else ())
        if file.noise
    }
    return Standard(
        path.stem,
        file.title,
        file.source,
        limits,
        measured,
        operators=file.operators,
        benchmark=file.benchmark,
        losses=file.losses,
        unchecked=file.unchecked,
        date=file.date,
        until=file.until,
    )

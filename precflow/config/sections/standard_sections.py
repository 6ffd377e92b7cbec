"""The sections of a standard's file that judge something else than records: evaluated operators, and losses.

    operators: {float16: {share: 99%, atol: 2^-10, rtol: 2^-10}}      against float64 at the operator's own inputs
    benchmark: {ratios: {L0: {rmse: 2}}}                              the same, in units of the reference's own error
    losses: {mean: {relative: 2%}}                                    the losses of a training run

A standard has one of them, or limits of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from precflow.config.documents import DottedPath
from precflow.config.suggestions import did_you_mean
from precflow.config.units import parse_share

Report = Callable[[DottedPath, str], None]

ORDINARY = "L0"
"""Level of an operator that no list of a benchmark names."""
RATIOS = ("mare", "mere", "rmse", "small")
_DEVIATIONS = ("absolute", "relative")


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Limits of one element type on an operator's output y against the golden g: float64 at the same inputs.

    Attributes:
        mare: Largest |y - g| / (|g| + 1e-7) stays below this.
        mere: The mean of the same stays below this.
        share: At least this share of the elements is within ``atol + rtol |g|``.
        atol: See ``share``.
        rtol: See ``share``.
        largest: The largest |y - g| is at most this, or ``largest_ulps``, whichever is more.
        largest_ulps: In units in the last place of g in the output's type.
    """

    mare: float | None = None
    mere: float | None = None
    share: float | None = None
    atol: float = 0.0
    rtol: float = 0.0
    largest: float | None = None
    largest_ulps: float = 0.0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Limits of the target's error over the reference's, each against float64 at that side's own inputs.

    Attributes:
        ratios: Level -> ``mare``, ``mere``, ``rmse`` and ``small`` -> largest ratio.
        levels: Operator -> level; all others are of level ``L0``.
        small: Element type -> below which |g| a value counts as small, and the absolute error that it may have.
        invalid: Relative error of the reference from which on nothing can be said.
        fewest: Calls of an operator from which on an exceeded ratio is judged again.
        draws: Bootstrap samples of that.
        confidence: Of its interval.
    """

    ratios: Mapping[str, Mapping[str, float]]
    levels: Mapping[str, str] = field(default_factory=dict)
    small: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    invalid: float = 0.1
    fewest: int = 200
    draws: int = 2000
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class Deviation:
    """Limits of a difference of losses; keeping one of them is enough.

    Attributes:
        absolute: It stays below this.
        relative: As a share of the reference's loss it stays below this.
    """

    absolute: float | None = None
    relative: float | None = None


@dataclass(frozen=True, slots=True)
class LossLimits:
    """Limits of the losses of a run.

    Attributes:
        first: Of the first step.
        mean: Of the mean over all steps.
        fewest_steps: A run with fewer steps can fail but not meet the standard.
        one_side: Share of the steps whose difference may have the same sign.
        one_side_steps: Steps from which on that is looked at.
        repeats: Further runs of the reference that the source asks for. Where they differ from the reference by more than a
            limit, the limit becomes that difference.
    """

    first: Deviation | None = None
    mean: Deviation | None = None
    fewest_steps: int = 1
    one_side: float | None = None
    one_side_steps: int = 0
    repeats: int = 0


def describe_origin(source: str, date: str, until: str) -> str:
    """Return the date, until when a standard was in force, and its source, in one line; screens cut the end."""
    return ", ".join(text for text in (date, until and f"until {until}", source) if text)


def read_operators(value: Any, report: Report) -> Mapping[str, OperatorLimits]:
    """Return element type -> limits. Names of element types are checked by :mod:`precflow.judgement.standards`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not value:
        report(("operators",), "expected element types such as float32, each with limits")
        return {}
    known = [one.name for one in fields(OperatorLimits)]
    read = {}
    for dtype, section in value.items():
        path = ("operators", str(dtype))
        limits = OperatorLimits(**_read_numbers(section, path, known, report))
        if limits.share is not None and not (limits.atol or limits.rtol):
            report(path, "has a `share` of elements, and neither `atol` nor `rtol` to be within")
        if limits.share is None and limits.mare is None and limits.mere is None and limits.largest is None:
            report(path, "has nothing that could fail: mare, mere, share with atol and rtol, or largest")
        read[str(dtype)] = limits
    return read


def read_benchmark(value: Any, report: Report) -> Benchmark | None:
    """Return the limits of ratios; ``None`` if there is no such section."""
    if value is None:
        return None
    section = _read_section(value, ("benchmark",), ("ratios", "levels", "small", "invalid", "recheck"), report)
    ratios = _read_section(section.get("ratios"), ("benchmark", "ratios"), None, report)
    read = {
        str(level): _read_numbers(limits, ("benchmark", "ratios", str(level)), RATIOS, report)
        for level, limits in ratios.items()
    }
    if section and ORDINARY not in read:
        report(("benchmark", "ratios"), f"has no level {ORDINARY}, which is that of every operator that no other level lists")
    levels: dict[str, str] = {}
    listed = _read_section(section.get("levels", {}), ("benchmark", "levels"), None, report)
    for level, operators in listed.items():
        if level not in read:
            report(("benchmark", "levels", str(level)), f"has no ratios.{did_you_mean(str(level), read)}")
        if not isinstance(operators, list):
            report(("benchmark", "levels", str(level)), "expected a list of operators")
            continue
        levels.update({str(operator): str(level) for operator in operators})
    small = {}
    for dtype, limits in _read_section(section.get("small", {}), ("benchmark", "small"), None, report).items():
        path = ("benchmark", "small", str(dtype))
        numbers = _read_numbers(limits, path, ("below", "error"), report)
        if len(numbers) == 2:
            small[str(dtype)] = (numbers["below"], numbers["error"])
        else:
            report(path, "expected `below` and `error`")
    recheck = _read_numbers(section.get("recheck", {}), ("benchmark", "recheck"), ("fewest", "draws", "confidence"), report)
    invalid = _read_numbers(
        {"invalid": section["invalid"]} if "invalid" in section else {}, ("benchmark",), ("invalid",), report
    )
    whole = {key: int(recheck.pop(key)) for key in ("fewest", "draws") if key in recheck}
    return Benchmark(read, levels, small, **invalid, **recheck, **whole)  # type: ignore[arg-type]  # each has its own type


def read_losses(value: Any, report: Report) -> LossLimits | None:
    """Return the limits of losses; ``None`` if there is no such section."""
    if value is None:
        return None
    section = _read_section(value, ("losses",), ("first", "mean", "fewest_steps", "one_side", "repeats"), report)
    deviations = {
        name: Deviation(**_read_numbers(section[name], ("losses", name), _DEVIATIONS, report))
        for name in ("first", "mean")
        if name in section
    }
    side = _read_numbers(section.get("one_side", {}), ("losses", "one_side"), ("share", "steps"), report)
    steps = section.get("fewest_steps", 1)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        report(("losses", "fewest_steps"), "expected a number of steps, 1 or more")
        steps = 1
    repeats = section.get("repeats", 0)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 0:
        report(("losses", "repeats"), "expected a number of further runs of the reference, 0 or more")
        repeats = 0
    if not deviations:
        report(("losses",), "has nothing that could fail: first or mean, each with absolute, relative or both")
    return LossLimits(
        **deviations,
        fewest_steps=steps,
        one_side=side.get("share"),
        one_side_steps=int(side.get("steps", 0)),
        repeats=repeats,
    )


def _read_section(value: Any, path: DottedPath, known: Sequence[str] | None, report: Report) -> Mapping[str, Any]:
    """Return a section whose keys are known; what is wrong with it is reported, and an empty one returned."""
    if not isinstance(value, Mapping):
        report(path, "expected keys and their values")
        return {}
    for key in (key for key in value if known is not None and key not in known):
        report((*path, str(key)), f"no such key.{did_you_mean(str(key), known or ())}")
    return {str(key): item for key, item in value.items() if known is None or key in known}


def _read_numbers(value: Any, path: DottedPath, known: Sequence[str], report: Report) -> dict[str, float]:
    """Return the numbers of a section; what is no number, or has no known name, is reported and left out."""
    numbers = {}
    for key, item in _read_section(value, path, known, report).items():
        try:
            numbers[key] = parse_share(item)
        except ValueError as error:  # noqa: PERF203  every number that is wrong is reported
            report((*path, key), f"{error}, got `{str(item)[:60]}`")
    return numbers

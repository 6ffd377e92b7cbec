"""The sections of a standard's file that judge something else than records: evaluated operators, and losses.

    operators: {float16: {share: 99%, atol: 2^-10, rtol: 2^-10}}      against float64 at the operator's own inputs
    benchmark: {ratios: {L0: {rmse: 2}}}                              the same, in units of the reference's own error
    losses: {mean: {relative: 2%}}                                    the losses of a training run

A standard has one of them, or limits of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from precflow.config.documents import PathProblems
from precflow.config.schema import Share
from precflow.config.suggestions import did_you_mean

ORDINARY = "L0"
"""Level of an operator that no list of a benchmark names."""
RATIOS = ("mare", "mere", "rmse", "small")
_NOTHING, _INVALID, _CONFIDENCE = Share(0.0), Share(0.1), Share(0.95)


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

    mare: Share | None = None
    mere: Share | None = None
    share: Share | None = None
    atol: Share = _NOTHING
    rtol: Share = _NOTHING
    largest: Share | None = None
    largest_ulps: Share = _NOTHING


@dataclass(frozen=True, slots=True)
class SmallValues:
    """What is asked of values near 0 in a benchmark.

    Attributes:
        below: A value counts as small if |g| is below this.
        error: The absolute error that it may have.
    """

    below: Share
    error: Share


@dataclass(frozen=True, slots=True)
class Recheck:
    """When and how an exceeded ratio is judged again, over all calls of an operator.

    Attributes:
        fewest: Calls of an operator from which on that is done.
        draws: Bootstrap samples.
        confidence: Of the interval.
    """

    fewest: int = 200
    draws: int = 2000
    confidence: Share = _CONFIDENCE


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Limits of the target's error over the reference's, each against float64 at that side's own inputs.

    Attributes:
        ratios: Level -> ``mare``, ``mere``, ``rmse`` and ``small`` -> largest ratio.
        levels: Level -> its operators; all others are of level ``L0``.
        small: Element type -> what is asked of small values.
        invalid: Relative error of the reference from which on nothing can be said.
        recheck: How an exceeded ratio is judged again.
    """

    ratios: Mapping[str, Mapping[str, Share]]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    small: Mapping[str, SmallValues] = field(default_factory=dict)
    invalid: Share = _INVALID
    recheck: Recheck = Recheck()

    def find_level(self, operator: str) -> str:
        """Return the level of an operator."""
        return next((level for level, operators in self.levels.items() if operator in operators), ORDINARY)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Limits of a difference of losses; keeping one of them is enough.

    Attributes:
        absolute: It stays below this.
        relative: As a share of the reference's loss it stays below this.
    """

    absolute: Share | None = None
    relative: Share | None = None


@dataclass(frozen=True, slots=True)
class OneSide:
    """How often a difference of losses may have the same sign.

    Attributes:
        share: Share of the steps.
        steps: Steps from which on that is looked at.
    """

    share: Share
    steps: int = 0


@dataclass(frozen=True, slots=True)
class LossLimits:
    """Limits of the losses of a run.

    Attributes:
        first: Of the first step.
        mean: Of the mean over all steps.
        fewest_steps: A run with fewer steps can fail but not meet the standard.
        one_side: How often the difference may have the same sign.
        repeats: Further runs of the reference that the source asks for. Where they differ from the reference by more than a
            limit, the limit becomes that difference.
    """

    first: Deviation | None = None
    mean: Deviation | None = None
    fewest_steps: int = 1
    one_side: OneSide | None = None
    repeats: int = 0


def describe_origin(source: str, date: str, until: str) -> str:
    """Return the date, until when a standard was in force, and its source, in one line; screens cut the end."""
    return ", ".join(text for text in (date, until and f"until {until}", source) if text)


def find_operator_problems(operators: Mapping[str, OperatorLimits]) -> PathProblems:
    """Yield what is wrong with limits of evaluated operators."""
    for dtype, limits in operators.items():
        if limits.share is not None and not (limits.atol or limits.rtol):
            yield ("operators", dtype), "has a `share` of elements, and neither `atol` nor `rtol` to be within"
        if limits.share is None and limits.mare is None and limits.mere is None and limits.largest is None:
            yield ("operators", dtype), "has nothing that could fail: mare, mere, share with atol and rtol, or largest"


def find_benchmark_problems(benchmark: Benchmark) -> PathProblems:
    """Yield what is wrong with limits of ratios."""
    for level, limits in benchmark.ratios.items():
        for name in (name for name in limits if name not in RATIOS):
            yield ("benchmark", "ratios", level, name), f"no such key.{did_you_mean(name, RATIOS)}"
    if ORDINARY not in benchmark.ratios:
        yield (
            ("benchmark", "ratios"),
            f"has no level {ORDINARY}, which is that of every operator that no other level lists",
        )
    for level in (level for level in benchmark.levels if level not in benchmark.ratios):
        yield ("benchmark", "levels", level), f"has no ratios.{did_you_mean(level, benchmark.ratios)}"


def find_loss_problems(losses: LossLimits) -> PathProblems:
    """Yield what is wrong with limits of losses."""
    if losses.fewest_steps < 1:
        yield ("losses", "fewest_steps"), f"is {losses.fewest_steps}; expected a number of steps, 1 or more"
    if losses.repeats < 0:
        yield ("losses", "repeats"), f"is {losses.repeats}; expected a number of further runs of the reference, 0 or more"
    if losses.first is None and losses.mean is None:
        yield ("losses",), "has nothing that could fail: first or mean, each with absolute, relative or both"

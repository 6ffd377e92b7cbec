"""What the curves of a training run add to a verdict: those of logs, and the losses that the two dumps hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import FORWARD, parse_identity
from precflow.comparison.measure import Measure
from precflow.config.sections.standard_sections import LossLimits
from precflow.curves.deviations import measure
from precflow.curves.joining import join
from precflow.curves.limits import hold_to_standard
from precflow.curves.outcome import CurveOutcome
from precflow.curves.series import make_series
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged, Verdict

_LINES: Mapping[str, float] = {"float64": 2.0**-12, "float32": 2.0**-12, "float16": 2.0**-5, "bfloat16": 2.0**-5}
_DIGITS: Mapping[str, int] = {"bfloat16": 8, "float16": 11}  # binary digits that a number of a type has
_ROUND = 4  # digits of a number that has so few in any type, such as 2.5
_AMPLIFIED = 16.0  # times the error of what it is made of: a loss is a difference of numbers that are larger than it
_AGREES = frozenset({"pass", "accepted", "covered", "not_judged"})
_FLIPPED = frozenset({"near_tie", "not_comparable"})


@dataclass(frozen=True)
class JudgedCurves:
    """All curves of a run together.

    Attributes:
        failed: What exceeds its limit.
        missing: What is missing for "aligned".
        met: Standard or plain limit with the name of its curve -> met.
        warnings: What a reader must know.
    """

    failed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    met: tuple[tuple[str, bool], ...] = ()
    warnings: tuple[str, ...] = ()


def collect_curves(outcomes: Sequence[CurveOutcome]) -> JudgedCurves:
    """Put all curves of a run together."""
    met = []
    for one in outcomes:
        held = {one.standard: one.standard} if one.standard else {}
        held |= {limit: f"{limit} <= {value:.3g}" for limit, value in one.limits.items()}
        met += [(f"{one.name}: {text}", one.met.get(limit, False)) for limit, text in held.items()]
    return JudgedCurves(
        failed=tuple(text for one in outcomes for text in one.failed),
        missing=tuple(text for one in outcomes for text in one.missing),
        met=tuple(met),
        warnings=tuple(f"{one.name}: {note}" for one in outcomes for note in one.notes),
    )


def judge_curves_alone(outcomes: Sequence[CurveOutcome]) -> Verdict:
    """Return the verdict of a run that compares nothing but curves.

    >>> judge_curves_alone([]).verdict
    'inconclusive'
    """
    curves = collect_curves(outcomes)
    return Verdict(
        verdict="misaligned" if curves.failed else "inconclusive" if curves.missing or not outcomes else "aligned",
        reasons=(*curves.failed, *curves.missing, *(() if outcomes else ("no curve was compared",))),
        standards=dict(curves.met),
        warnings=curves.warnings,
    )


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """What is said about the losses of a run.

    Attributes:
        failed: What exceeds its limit, in words.
        missing: Why they could not be judged, or not in full; ``""`` if they could.
    """

    failed: tuple[str, ...] = ()
    missing: str = ""

    @property
    def is_met(self) -> bool:
        """All of it could be applied, and nothing failed."""
        return not self.failed and not self.missing


def judge_losses(limits: LossLimits, reference: Mapping[int, float], target: Mapping[int, float]) -> LossOutcome:
    """Hold the losses of a run to a standard.

    Args:
        limits: The standard's limits.
        reference: Step -> its loss.
        target: The same of the target. Steps that only one side has are missing, not failed.

    >>> from precflow.config.sections.standard_sections import Deviation
    >>> judge_losses(LossLimits(mean=Deviation(relative=0.02)), {0: 2.0, 1: 1.0}, {0: 2.0, 1: 1.03}).failed
    ()
    """
    pairs = {step: (loss, target[step]) for step, loss in reference.items() if step in target}
    if not pairs:
        return LossOutcome(missing="it judges the losses of a training run (workload.loss), and the dumps hold none")
    broken = [step for step, pair in pairs.items() if not all(map(math.isfinite, pair))]
    if broken:
        first = broken[0]
        both = all(not math.isfinite(loss) for loss in pairs[first])
        text = f"the loss of step {first} is not finite on {'both sides' if both else 'one side'}"
        return LossOutcome(missing=text) if both else LossOutcome(failed=(text,))
    curves = [make_series(list(losses), list(losses.values())) for losses in (reference, target)]
    held = hold_to_standard("loss", limits, measure(join(*curves)))
    missing = list(held.missing)
    if len(reference) != len(target):
        missing.insert(0, f"the reference has {len(reference)} losses and the target {len(target)}")
    return LossOutcome(held.failed, "; ".join(missing))


@dataclass(frozen=True, slots=True)
class LossLine:
    """How far apart the losses of a step may be if the forward before it is aligned: rounding explains that much.

    Attributes:
        relative: Largest difference relative to the larger loss. It is about 16 times the limit of preset ``default``, and as
            many times the error of the forward: under autocast that is an error of 16 bits, though the run is in float32.
        absolute: Largest difference of a loss near 0, which is far off relative to itself.

    """

    relative: float
    absolute: float = 0.0

    def explains(self, left: float, right: float) -> bool:
        """Tell whether two losses are no further apart; one that is not finite is."""
        apart = abs(left - right)
        within = self.find_relative(left, right) * max(abs(left), abs(right))
        return math.isfinite(apart) and (apart <= within or apart <= self.absolute)

    def find_relative(self, left: float, right: float) -> float:
        """Return the largest relative difference of two losses, of which one side alone may compute its in 16 bits."""
        types = {find_loss_type([left]), find_loss_type([right])}
        return max([self.relative, *(_LINES[name] for name in types if name and len(types) > 1)])


def find_loss_type(losses: Iterable[float]) -> str:
    """Return the type of 16 bits that losses are computed in, ``""`` for none, by the binary digits that they have.

    A loss in float32 has so few in one of 65 536 cases, or in one of 8 192 if the type is float16. Round numbers tell nothing.

    >>> find_loss_type([2.28125, 2.296875]), find_loss_type([2.28125, 2.29166]), find_loss_type([2.5, 2.0])
    ('bfloat16', '', '')
    """
    digits = [_count_digits(loss) for loss in losses if math.isfinite(loss)]
    most = max(digits, default=0)
    return next((name for name, count in _DIGITS.items() if _ROUND < most <= count), "")


def _count_digits(number: float) -> int:
    """Return how many binary digits a number has, from its first to its last 1.

    >>> _count_digits(2.5), _count_digits(0.0)
    (3, 0)
    """
    numerator = abs(number).as_integer_ratio()[0]
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


def find_narrow_losses(reference: Mapping[int, float], target: Mapping[int, float]) -> tuple[str, str] | None:
    """Return which side alone computes its losses in 16 bits, and the type; ``None`` if both do or neither.

    Args:
        reference: Step -> its loss.
        target: The same of the target.
    """
    types = {"reference": find_loss_type(reference.values()), "target": find_loss_type(target.values())}
    narrow = [side for side, name in types.items() if name]
    return (narrow[0], types[narrow[0]]) if reference and target and len(narrow) == 1 else None


def find_loss_line(
    rows: Sequence[tuple[Measure, Judged]], step: int, dtypes: tuple[str, str], *, times: float = 1.0
) -> LossLine:
    """Return the line for the loss of a step.

    Args:
        rows: Every record with its status. The errors of the step's forward count, but for those that fail.
        step: Number of the step.
        dtypes: Floating point types that the sides ran in. A type that is not known is taken for one of 16 bits.
        times: How many times as far the losses may be apart, as far as that does not follow from the forward.
    """
    forward = [
        measure
        for measure, judged in rows
        if measure.phase == FORWARD and judged.status not in MISALIGNED_STATUSES and parse_identity(measure.record).step == step
    ]
    relative, absolute = (_AMPLIFIED * _find_worst(forward, metric) for metric in ("relative_l2", "max_abs_error"))
    return LossLine(max(times * max(_LINES.get(dtype, _LINES["bfloat16"]) for dtype in dtypes), relative), absolute)


def judge_first_loss(
    rows: Sequence[tuple[Measure, Judged]],
    reference: Mapping[int, float],
    target: Mapping[int, float],
    dtypes: tuple[str, str],
) -> LossOutcome:
    """Say whether the loss of the first recorded step agrees as well as the forward that it is computed from.

    A run that records the forward of modules alone has the function of the loss in no record: it may divide by another
    number or leave a mask out, and every record agrees. Losses of later steps follow from an update and are not judged here.

    Args:
        rows: Every record with its status. If one of the step's forward fails, that says it all.
        reference: Step -> its loss.
        target: The same of the target.
        dtypes: Floating point types that the sides ran in.
    """
    if not (reference and target):
        return LossOutcome()
    steps = [parse_identity(measure.record).step for measure, _ in rows]
    step = min(steps, default=0)
    forward = [row for row, its_step in zip(rows, steps, strict=True) if its_step == step and row[0].phase == FORWARD]
    statuses = {judged.status for _, judged in forward}
    left, right = reference.get(step), target.get(step)
    if left is None or right is None or statuses & MISALIGNED_STATUSES or statuses & _FLIPPED:
        return LossOutcome()
    if not math.isfinite(left) and not math.isfinite(right):
        return LossOutcome(missing=f"the loss of step {step} is finite on neither side")
    if find_loss_line(forward, step, dtypes).explains(left, right):
        return LossOutcome()
    text = f"the loss of step {step} is {left:.6g} on the reference and {right:.6g} on the target"
    if statuses and statuses <= _AGREES and "pass" in statuses:
        return LossOutcome(failed=(f"{text}, though every record of the forward before it agrees: what computes it differs",))
    return LossOutcome(missing=f"{text}, and what was compared of the forward before it does not explain that")


def _find_worst(measures: Sequence[Measure], metric: str) -> float:
    """Return the largest error of records, with what an estimate leaves open; 0 without any."""
    return max((measure.ranges.get(metric, (0.0, measure.metrics.get(metric, 0.0)))[1] for measure in measures), default=0.0)

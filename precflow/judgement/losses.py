"""The losses of a run against a standard: the first step, the mean over all steps, and differences that lean to one side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from precflow.config.standard_sections import Deviation, LossLimits


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """What a standard says about the losses of a run.

    Attributes:
        failed: What exceeds its limit, in words.
        missing: Why the standard could not be applied, or not in full; ``""`` if it could.
    """

    failed: tuple[str, ...] = ()
    missing: str = ""

    @property
    def is_met(self) -> bool:
        """All of it could be applied, and nothing failed."""
        return not self.failed and not self.missing


def judge_losses(limits: LossLimits, reference: Sequence[float], target: Sequence[float]) -> LossOutcome:
    """Hold the losses of a run to a standard.

    Args:
        limits: The standard's limits.
        reference: A loss for each step.
        target: The same of the target. Steps that only one side has are missing, not failed.

    >>> judge_losses(LossLimits(mean=Deviation(relative=0.02)), [2.0, 1.0], [2.0, 1.03]).failed
    ()
    """
    steps = min(len(reference), len(target))
    if not steps:
        return LossOutcome(missing="it judges the losses of a training run (workload.loss), and the dumps hold none")
    pairs = list(zip(reference, target, strict=False))
    broken = [number for number, pair in enumerate(pairs) if not all(map(math.isfinite, pair))]
    if broken:
        first = broken[0]
        both = all(not math.isfinite(loss) for loss in pairs[first])
        text = f"the loss of step {first} is not finite on {'both sides' if both else 'one side'}"
        return LossOutcome(missing=text) if both else LossOutcome(failed=(text,))
    failed = [
        *_judge_deviation("the first loss", limits.first, pairs[:1]),
        *_judge_deviation("the loss, on average,", limits.mean, pairs),
        *_judge_sides(limits, pairs),
    ]
    missing = []
    if len(reference) != len(target):
        missing.append(f"the reference has {len(reference)} losses and the target {len(target)}")
    if steps < limits.fewest_steps:
        missing.append(f"it asks for {limits.fewest_steps} steps or more, and the dumps hold the losses of {steps}")
    return LossOutcome(tuple(failed), "; ".join(missing))


def _judge_deviation(what: str, limits: Deviation | None, pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Return the failure in words, none if one of the limits is kept."""
    if limits is None:
        return []
    absolute = statistics.fmean(abs(target - reference) for reference, target in pairs)
    relative = statistics.fmean(_divide(abs(target - reference), abs(reference)) for reference, target in pairs)
    kept = [value < limit for value, limit in ((absolute, limits.absolute), (relative, limits.relative)) if limit is not None]
    if any(kept) or not kept:
        return []
    asked = [
        *([f"{limits.absolute:g}"] if limits.absolute is not None else []),
        *([f"{limits.relative:.3g} of the reference's"] if limits.relative is not None else []),
    ]
    difference = f"{absolute:.3g} ({relative:.3g} of the reference's)"
    return [f"{what} differs by {difference}; it has to differ by less than {' or '.join(asked)}"]


def _divide(value: float, by: float) -> float:
    return value / by if by else 0.0 if not value else math.inf


def _judge_sides(limits: LossLimits, pairs: Sequence[tuple[float, float]]) -> list[str]:
    if limits.one_side is None or len(pairs) < limits.one_side_steps:
        return []
    above = sum(target > reference for reference, target in pairs) / len(pairs)
    below = sum(target < reference for reference, target in pairs) / len(pairs)
    share, side = max((above, "above"), (below, "below"))
    if share < limits.one_side:
        return []
    return [f"the target's loss is {side} the reference's in {share:.3g} of the steps, and has to fluctuate around it"]

"""The losses that two dumps hold against a standard: the first step, the mean over all steps, and differences to one side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precflow.config.sections.standard_sections import LossLimits
from precflow.curves.deviations import measure
from precflow.curves.joining import join
from precflow.curves.limits import hold_to_standard
from precflow.curves.series import make_series


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

    >>> from precflow.config.sections.standard_sections import Deviation
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
    curves = [make_series(range(len(losses)), losses) for losses in (reference, target)]
    held = hold_to_standard("loss", limits, measure(join(*curves)))
    missing = list(held.missing)
    if len(reference) != len(target):
        missing.insert(0, f"the reference has {len(reference)} losses and the target {len(target)}")
    return LossOutcome(held.failed, "; ".join(missing))

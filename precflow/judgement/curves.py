"""What the curves of a training run add to a verdict: those of logs, and the losses that the two dumps hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precflow.config.sections.standard_sections import LossLimits
from precflow.curves.deviations import measure
from precflow.curves.joining import join
from precflow.curves.limits import hold_to_standard
from precflow.curves.outcome import CurveOutcome
from precflow.curves.series import make_series
from precflow.judgement.verdicts import Verdict


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
        held = [*([one.standard] if one.standard else []), *(f"{limit} <= {value:.3g}" for limit, value in one.limits.items())]
        met += [(f"{one.name}: {text}", one.verdict == "aligned") for text in held]
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

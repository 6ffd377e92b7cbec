"""What the curves of a training run add to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precflow.curves.outcome import CurveOutcome
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

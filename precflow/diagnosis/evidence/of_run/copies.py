"""Copies of the weights that the script keeps itself, such as their moving average, where only these differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precflow.agent.contract import OPTIMIZER, parse_identity
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.judgement.copies import name_copy
from precflow.judgement.verdicts import MISALIGNED_STATUSES

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "copy_differs": Evidence(
        "copy of the weights that differs",
        "Name of the script's variable that keeps it, such as a moving average; absent unless all weights before it agree.",
    ),
    "copy_step": Evidence("it differs first in step", "Number of the step, from 0."),
    "copy_ratio": Evidence("it exceeds its limit", "The largest ratio to a limit in that step.", unit="x"),
    "copy_parameters": Evidence("parameters whose copy differs", "In that step."),
}


def gather(run: Comparison) -> dict[str, Any]:
    """Return the first dictionary that differs although every weight up to its step agrees."""
    rows = [
        (parse_identity(measure.record), name_copy(measure), judged)
        for measure, judged in zip(run.measures, run.judged, strict=True)
        if measure.phase == OPTIMIZER
    ]
    failing = [row for row in rows if row[2].status in MISALIGNED_STATUSES]
    copies = [row for row in failing if row[1]]
    if not copies:
        return {}
    first, name, _ = min(copies, key=lambda row: row[0].step)
    if any(not copy and identity.step < first.step for identity, copy, _ in failing):
        return {}
    ratios = [judged.ratio for identity, each, judged in copies if identity.step == first.step and each == name]
    return {"copy_differs": name, "copy_step": first.step, "copy_ratio": max(ratios), "copy_parameters": len(ratios)}

"""Copies of weights that one side alone keeps: they are shown and never counted.

A script may keep its weights once more, for a moving average or to look at them. What is on both sides is compared. A
copy of one side alone, or of another name, says nothing about what both compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precflow.agent.contract import COPY_IN, OPTIMIZER, parse_identity
from precflow.comparison.measure import Measure
from precflow.judgement.decision import Decision

_UNPAIRED = frozenset({"unpaired_reference", "unpaired_target"})
_WHY = "a copy of the weights that the script of one side alone keeps under this name"


def name_copy(measure: Measure) -> str:
    """Return the name of the script's variable whose copy a record is of; ``""`` for all other records."""
    if measure.phase != OPTIMIZER or COPY_IN not in measure.record:
        return ""
    return parse_identity(measure.record).index.partition(f".{COPY_IN}")[2]


def mark_copies(measures: Sequence[Measure], decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions with copies of weights that have no partner not judged.

    Args:
        measures: Every record.
        decisions: One for each measure, in the same order.
    """
    return [
        replace(one, judged=replace(one.judged, status="not_judged", reason=_WHY))
        if one.judged.status in _UNPAIRED and name_copy(measure)
        else one
        for measure, one in zip(measures, decisions, strict=True)
    ]

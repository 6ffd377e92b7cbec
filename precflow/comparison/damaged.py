"""Measures of records whose lines are not what was sealed: a flipped bit may be a number in them, and proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import parse_identity
from precflow.comparison.measures import Measure
from precflow.dumps.reader import Dump

Place = tuple[int, int]
"""Rank and step."""


def set_aside(measures: Sequence[Measure], reference: Dump, target: Dump) -> list[Measure]:
    """Return the measures, those that rest on a line of an altered file as ``unreadable``, with the reason.

    What was computed from tensors stays, and that both sides have equal bits: content ids vouch for those.

    Args:
        measures: Of the two dumps.
        reference: Dump of the reference.
        target: Dump of the target.
    """
    sides = (("reference", reference), ("target", target))
    altered = {place: f"{side}: {problem}" for side, dump in sides for place, problem in dump.altered.items()}
    return [_without_numbers(measure, altered) for measure in measures] if altered else list(measures)


def _without_numbers(measure: Measure, altered: Mapping[Place, str]) -> Measure:
    if measure.join not in {"paired", "shape"} or measure.equal or measure.evidence == "tensors":
        return measure
    who = parse_identity(measure.record)
    reason = altered.get((who.rank, who.step))
    if reason is None:
        return measure
    return replace(
        measure, join="unreadable", reason=reason, evidence="", metrics={}, ranges={}, absent={}, counts={}, warnings=()
    )

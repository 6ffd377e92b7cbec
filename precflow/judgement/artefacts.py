"""Artefacts of a comparison: records that differ without a fault, because one side did not compute them.

:mod:`precflow.dumps.warm_up` finds calls that warm up, :mod:`precflow.diagnosis.padding` rows of padding. A run with one is not
aligned: what only one side has computed was not compared. Records that pass by their real tokens alone are a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from precflow.agent.contract import parse_identity
from precflow.comparison.measure import Measure
from precflow.dumps.warm_up import BOTH, Place, WarmUp
from precflow.judgement.coverage import COMPARED, records_in_words
from precflow.judgement.decision import Decision
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

PADDING = "only rows of padding differ"
"""How the reason begins of records that differ there alone."""


def mark_warm_ups(measures: Sequence[Measure], decisions: Sequence[Decision], warm_ups: Sequence[WarmUp]) -> list[Decision]:
    """Return the decisions; what differs in a call that one side warms up in is an artefact, with that as its reason.

    Args:
        measures: All records.
        decisions: One a measure, in the same order.
        warm_ups: The calls.
    """
    texts = {each.place: each.text for each in warm_ups if each.side != BOTH}
    if not texts:
        return list(decisions)
    return [
        _mark(decision, texts[place])
        if decision.judged.status in MISALIGNED_STATUSES | {"undecided"} and (place := _place(measure)) in texts
        else decision
        for measure, decision in zip(measures, decisions, strict=True)
    ]


def _mark(decision: Decision, text: str) -> Decision:
    judged = Judged(decision.judged.record, "artefact", reason=text)
    return replace(decision, judged=judged, failed=frozenset(), undecided=frozenset())


def _place(measure: Measure) -> Place:
    identity = parse_identity(measure.record)
    return identity.rank, identity.step, identity.call


def describe_artefacts(
    measures: Sequence[Measure], judged: Sequence[Judged], warm_ups: Sequence[WarmUp]
) -> tuple[list[str], list[str]]:
    """Return what stands in the way of a verdict, and what it is to be warned of, in words."""
    both = {each.place: each.text for each in warm_ups if each.side == BOTH}
    alone = [each.text for each in warm_ups if each.side != BOTH]
    others = Counter(one.reason for one in judged if one.status == "artefact" and one.reason not in alone)
    alone += [f"{records_in_words(count)}: {reason}" for reason, count in others.items()]
    padded = Counter(one.reason for one in judged if one.status == "pass" and one.reason.startswith(PADDING))
    warnings = [f"{records_in_words(count)}: {reason}" for reason, count in padded.items()]
    if not both:
        return alone, warnings
    compared = {_place(measure) for measure, one in zip(measures, judged, strict=True) if one.status in COMPARED}
    return (alone, [*both.values(), *warnings]) if compared - both.keys() else ([*alone, *both.values()], warnings)

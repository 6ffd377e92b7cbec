"""Two forms of one loss: other calls outside of every module, and the same loss and gradients.

A script may write its loss with ``cross_entropy`` or by hand, add its terms in another order, or reverse its rows. The calls in
between then have no partner, or one that computes something else under the same name. Their records are ``covered`` where

* the sides make other calls for the loss of a step, or make them with other tensors; otherwise the records have to agree,
* the losses are the same but for rounding, and
* everything that was recorded of the step's backward and its gradients was compared and agrees.

A call that is no part of the loss is not covered, such as a metric that one side computes: no gradient tells if it is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import BACKWARD, GRADIENT, parse_identity
from precflow.comparison.measure import Measure
from precflow.dumps.loss_parts import LossParts
from precflow.judgement.covered import UNPAIRED
from precflow.judgement.curves import find_loss_line
from precflow.judgement.decision import Decision
from precflow.judgement.verdicts import MISALIGNED_STATUSES

_AGREES = frozenset({"pass", "blind", "accepted", "covered", "not_judged"})
_WHY = "both sides compute the loss by other calls; it agrees, and so do all gradients of the step"


def mark_loss_parts(
    measures: Sequence[Measure],
    decisions: list[Decision],
    parts: LossParts,
    losses: tuple[Mapping[int, float], Mapping[int, float]],
    dtypes: tuple[str, str],
) -> list[Decision]:
    """Return the decisions; parts of a loss that is computed otherwise become ``covered`` where what comes of it agrees.

    Args:
        measures: Every record.
        decisions: One for each measure, in the same order.
        parts: What the losses are computed by.
        losses: Step -> its loss, on the reference and on the target.
        dtypes: Floating point types that the sides ran in.
    """
    open_ones = [
        number
        for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True))
        if measure.record in parts.records and decision.judged.status in UNPAIRED | MISALIGNED_STATUSES
    ]
    if not open_ones:
        return decisions
    left: dict[tuple[int, int], set[str]] = defaultdict(set)  # step and rank -> statuses of what its backward left
    for measure, decision in zip(measures, decisions, strict=True):
        if measure.phase in {BACKWARD, GRADIENT}:
            identity = parse_identity(measure.record)
            left[identity.step, identity.rank].add(decision.judged.status)
    rows = [(measure, decision.judged) for measure, decision in zip(measures, decisions, strict=True)]
    agreeing = {
        step: find_loss_line(rows, step, dtypes).explains(losses[0][step], losses[1][step])
        for step in {step for step, _ in parts.otherwise}
    }
    marked = list(decisions)
    for number in open_ones:
        identity = parse_identity(measures[number].record)
        when = identity.step, identity.rank
        if when in parts.otherwise and agreeing[identity.step] and left[when] <= _AGREES and "pass" in left[when]:
            judged = decisions[number].judged
            reason = "; ".join(filter(None, (judged.reason, _WHY)))
            judged = replace(judged, status="covered", reason=reason)
            marked[number] = replace(decisions[number], judged=judged, failed=frozenset())
    return marked

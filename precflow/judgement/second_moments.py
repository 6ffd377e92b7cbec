"""Second moments of an optimizer that follow from their gradients: a square is off by twice as much as what is squared.

Adam keeps a running mean of squared gradients (``exp_avg_sq``). Where a gradient is off by an error e, within its limit, its
square is off by 2 e, and at single elements by more, because squares give large elements more weight. A noise floor of three
runs knows that of the reference's own rounding alone: one moment in a thousand then exceeds its limit by a tenth, though every
gradient agrees. Such a moment says nothing that its gradients do not say, so it passes.

Why this cannot hide a fault: a moment passes only if it differs by no more than ``SECOND_MOMENT`` times what the gradients
differ by that it is made of, and these are within limits of their own. A moment of another formula or another beta differs by
a share of itself, whatever the gradients do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import GRADIENT, OPTIMIZER, Identity, parse_identity
from precflow.comparison.measure import Measure
from precflow.judgement import lines
from precflow.judgement.decision import Decision, find_class_failures

_SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})
"""States of torch's optimizers that are made of squared gradients."""
_ParameterKey = tuple[str, str, int]


def pass_second_moments(measures: Sequence[Measure], decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions with those second moments passing that follow from gradients which agree.

    Args:
        measures: All records.
        decisions: One a measure, in the same order.
    """
    failing = [
        number
        for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True))
        if decision.judged.status == "fail" and decision.failed and measure.phase == OPTIMIZER
    ]
    if not failing:
        return list(decisions)
    gradients = _collect_gradients(measures, decisions)
    passed = list(decisions)
    for number in failing:
        identity = parse_identity(measures[number].record)
        parameter, _, state = identity.index.partition(".")
        if state in _SQUARES:
            before = gradients.get((identity.module, parameter, identity.rank), {})
            passed[number] = _pass_if_it_follows(measures[number], decisions[number], identity, before)
    return passed


def _collect_gradients(
    measures: Sequence[Measure], decisions: Sequence[Decision]
) -> dict[_ParameterKey, dict[int, tuple[Measure, bool]]]:
    """Return for each parameter its gradient in each step, and whether all records of it agree."""
    found: dict[_ParameterKey, dict[int, tuple[Measure, bool]]] = {}
    for measure, decision in zip(measures, decisions, strict=True):
        if measure.phase == GRADIENT:
            identity = parse_identity(measure.record)
            steps = found.setdefault((identity.module, identity.index, identity.rank), {})
            # Of a step that accumulates, the last record is the whole gradient.
            agrees = decision.judged.status == "pass" and steps.get(identity.step, (measure, True))[1]
            steps[identity.step] = measure, agrees
    return found


def _pass_if_it_follows(
    measure: Measure, decision: Decision, identity: Identity, gradients: Mapping[int, tuple[Measure, bool]]
) -> Decision:
    known = [one for step, one in gradients.items() if step <= identity.step]
    if identity.step not in gradients or not all(agrees for _, agrees in known) or find_class_failures(measure):
        return decision
    limits = {}
    for condition in decision.failed:
        times = lines.SECOND_MOMENT_LARGEST if condition.metric == "max_rms_error" else lines.SECOND_MOMENT
        errors = [gradient.metrics.get(condition.metric) for gradient, _ in known]
        limits[condition.metric] = times * max((error for error in errors if error is not None), default=0.0)
    values = {metric: measure.metrics.get(metric) for metric in limits}
    if any(value is None or not value <= limits[metric] for metric, value in values.items()):
        return decision
    metric = decision.judged.metric if decision.judged.metric in limits else next(iter(limits))
    value, limit = float(measure.metrics[metric]), limits[metric]
    judged = replace(decision.judged, status="pass", metric=metric, value=value, limit=limit, ratio=value / limit, reason="")
    return replace(decision, judged=judged, failed=frozenset())

"""Gradients that reach the optimizer changed on one side alone, though a small step of the weights does not show it.

Between backward and the optimizer a loop clips its gradients, takes a loss scale off, or adds noise::

    gradient    0.weight   relative_l2 3e-7   pass                what backward left
    optimizer   0.weight   given: relative_l2 0.1                 what the optimizer was given
                           made:  relative_l2 4e-6   pass         the weight, which a step of 1e-4 hardly moves

The given gradient is no output, and only outputs are judged. So the step that it is given to fails in its place, where the
gradients as backward left them agree much better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import GRADIENT, OPTIMIZER, Identity, parse_identity
from precflow.comparison.measure import Measure
from precflow.dumps.collectives import REDUCING
from precflow.dumps.records import Call, Record
from precflow.judgement.decision import Decision
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged
from precflow.metrics import find_metric

_TIMES = 4
"""A given gradient is off by more than this many times its limit, and than what gradients of its step are off by as backward
left them: a norm that they are clipped to is off by no more than the worst of them."""
_When = tuple[int, int]  # step and rank


def find_given(
    reference: Iterable[Call], target: Iterable[Call], judge_input: Callable[[Record, Record], Judged]
) -> dict[str, Judged]:
    """Return the first output of each optimizer step -> the status of the gradient that it was given, where that fails.

    Gradients that were recorded with the same bits as backward left them are not read again: they are judged themselves.

    Args:
        reference: Calls of the reference.
        target: Calls of the target, numbered as their partners are.
        judge_input: Judges an input by the limits of the run.
    """
    updates, left = _index(reference)
    updates_of_target, left_of_target = _index(target)
    failed: dict[str, Judged] = {}
    for identity, call in updates.items():
        partner = updates_of_target.get(identity)
        given = [_find_given(each) for each in (call, partner)]
        if given[0] is None or given[1] is None or (given[0].known and given[0].known == given[1].known):
            continue
        own = identity._replace(phase=GRADIENT, call=0)
        if all(
            record is not None and record.known in known.get(own, ())
            for record, known in zip(given, (left, left_of_target), strict=True)
        ):
            continue
        judged = judge_input(given[0], given[1])
        if judged.status in MISALIGNED_STATUSES:
            failed[call.outputs[0].text] = judged
    return failed


def mark_given(measures: Sequence[Measure], decisions: Sequence[Decision], given: Mapping[str, Judged]) -> list[Decision]:
    """Return the decisions; steps of an optimizer that pass fail if they were given another gradient than backward left.

    Args:
        measures: Every record.
        decisions: One for each measure, in the same order.
        given: Record of a step -> the status of the gradient that it was given, where that fails.
    """
    if not given:
        return list(decisions)
    before: dict[_When, list[Measure]] = {}
    for measure, decision in zip(measures, decisions, strict=True):
        if measure.phase == GRADIENT or measure.operator.removeprefix("aten.") in REDUCING:
            if decision.judged.status in MISALIGNED_STATUSES:  # it is the start itself, and the step inherits it
                return list(decisions)
            identity = parse_identity(measure.record)
            before.setdefault((identity.step, identity.rank), []).append(measure)
    marked = list(decisions)
    for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True)):
        judged = given.get(measure.record)
        if judged is None or decision.judged.status not in {"pass", "blind"}:
            continue
        identity = parse_identity(measure.record)
        if _is_changed(judged, before.get((identity.step, identity.rank), ())):
            reason = f"the optimizer is given another gradient: {judged.reason}"
            marked[number] = replace(
                decision, judged=replace(judged, record=measure.record, reason=reason), failed=frozenset(), zero_gradient=None
            )
    return marked


def _index(calls: Iterable[Call]) -> tuple[dict[Identity, Call], dict[Identity, set[str]]]:
    """Return first output of an optimizer's step -> its call, and parameter in a step -> content ids of its gradients."""
    updates: dict[Identity, Call] = {}
    left: dict[Identity, set[str]] = {}
    for call in calls:
        if call.phase == OPTIMIZER and call.outputs:
            updates[call.outputs[0].identity] = call
        elif call.phase == GRADIENT:
            for record in call.outputs:
                left.setdefault(record.identity._replace(call=0), set()).add(record.known)
    return updates, left


def _find_given(call: Call | None) -> Record | None:
    """Return the gradient that a step of the optimizer was given; ``None`` if it was not recorded."""
    if call is None:
        return None
    return next((record for record in call.inputs if record.index == call.outputs[0].index), None)


def _is_changed(judged: Judged, gradients: Sequence[Measure]) -> bool:
    """Tell whether a given gradient is off by much more than its limit, and than the gradients that backward left."""
    if not judged.metric:  # NaN on one side, another shape: the gradients have none
        return bool(gradients)
    known = [measure.metrics[judged.metric] for measure in gradients if judged.metric in measure.metrics]
    if not known or judged.ratio <= _TIMES:
        return False
    best = float(find_metric(judged.metric).at_least)
    return abs(judged.value - best) > _TIMES * max(abs(value - best) for value in known)

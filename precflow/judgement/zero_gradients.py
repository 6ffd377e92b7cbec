"""Gradients that are zero but for rounding: a relative limit has no meaning for them.

Softmax does not change when a constant is added to all scores of a row, so the exact gradient of the bias of an attention's
keys is zero. What a device computes is the rounding that is left of a sum that cancels, and two correct devices differ there
by 100 %. Such a gradient can be recognised by its norm, which is below the rounding of the other gradients of its module: at
most 0.4 epsilon of the weight's for keys (some more on a chip that adds up in long strands), but 3.7 epsilon (bfloat16) to a
million epsilon (float32) for every other bias of a text encoder of six layers.

Why this cannot hide a fault: a bias and a weight are sums over the same arriving gradients, the weight's times the inputs. So
in float32 and float64 a bias is that small only if its sum cancels, otherwise rows of inputs would need a norm of hundreds of
thousands. Such a record is blind if it is so small on *both* sides; if only one side is, the other has a gradient that this one
lacks, and the record fails. In low precision inputs with a norm of 64 are enough, and those are common: there it is blind only
if the largest gradient of its module passes, so that the same arrivals are known to be right. If that fails too, the record
fails, and its reason and a warning say that it may be zero apart from rounding.

The same holds for an optimizer's state that is made of such gradients. The weight behind them is blind with it: Adam divides by
the gradient's own size, so it makes whole steps of noise. With a decay that is added to the gradient, SGD's momentum is the
decay of the weight and such noise: it is blind too, as long as it is off by no more than the noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import GRADIENT, OPTIMIZER
from precflow.comparison.measure import Measure
from precflow.dumps.dtypes import coarsest, float_facts
from precflow.judgement import lines
from precflow.judgement.decision import Decision, ZeroGradient, find_class_failures
from precflow.metrics import find_metric

_NORMS = "both sides are below the rounding of its module's largest gradient ({:.2g}, {:.2g} against {:.2g} times {:.2g})"
_EXAMPLE = "zero apart from rounding, as the bias of an attention's keys is"
_REASONS = {
    ZeroGradient.CERTAIN: "{norms}; it is " + _EXAMPLE,
    ZeroGradient.POSSIBLE: "{before}; {norms}; it may be " + _EXAMPLE + ": an accepted difference takes it",
    ZeroGradient.STEP: "the optimizer steps by a gradient that is zero apart from rounding",
}

GradientGroup = tuple[str, str, str]
"""Module, step and rank, and the optimizer's state or ``""``: gradients of one group are sums over the same arrivals."""
ParameterKey = tuple[str, str, str]
"""Module, name of the parameter, and step and rank: what a parameter's gradient, weight and state have in common."""
_NO_TYPES: Mapping[str, str] = {}


def mark_zero_gradients(
    measures: Sequence[Measure], decisions: Sequence[Decision], carried: Mapping[str, str] = _NO_TYPES
) -> list[Decision]:
    """Return the decisions with failing gradients that are zero but for rounding blind, and those that may be marked.

    Args:
        measures: All records.
        decisions: One a measure, in the same order.
        carried: Identity text -> the coarsest type that its values went through, where that is coarser than its own: autocast
            keeps gradients in float32 that were computed in 16 bits.
    """
    largest = _find_largest_norms(measures)
    passing = {
        _gradient_group(measure)
        for measure, decision in zip(measures, decisions, strict=True)
        if _is_of_gradients(measure) and not decision.failed and _has_largest_norm(measure, largest)
    }
    marked = [
        _mark(measure, decision, largest, passing, carried.get(measure.record, ""))
        for measure, decision in zip(measures, decisions, strict=True)
    ]
    _mark_decayed_states(measures, marked, largest)
    noisy, failing = set[ParameterKey](), set[ParameterKey]()
    for measure, decision in zip(measures, marked, strict=True):
        if decision.zero_gradient is ZeroGradient.CERTAIN:
            noisy.add(_parameter(measure))
        elif decision.failed and _is_of_gradients(measure):
            failing.add(_parameter(measure))
    noisy -= failing  # if a parameter's gradient or state still fails, its weight may be wrong for that reason
    if not noisy:
        return marked
    for number, (measure, decision) in enumerate(zip(measures, marked, strict=True)):
        is_weight = measure.phase == OPTIMIZER and not _state(measure)
        if is_weight and _parameter(measure) in noisy and _fails_relatively(decision):
            marked[number] = _with_cause(decision, ZeroGradient.STEP)
    return marked


def _mark(
    measure: Measure,
    decision: Decision,
    largest: Mapping[GradientGroup, float],
    passing: Collection[GradientGroup],
    carried: str,
) -> Decision:
    """Mark one gradient; one that fails a limit in the tensor's own unit stays as it is."""
    norms = _bound_norms(measure) if _is_of_gradients(measure) and _fails_relatively(decision) else None
    dtype = coarsest([measure.reference_dtype, measure.target_dtype, carried])
    # A mask fill against a number, for example, is no rounding: such a record keeps failing.
    if norms is None or not dtype or find_class_failures(measure):
        return decision
    is_fine = float_facts(dtype).digits >= lines.FINE_DIGITS
    epsilon, norm = _rounding(dtype), largest.get(_gradient_group(measure), 0.0)
    if max(norms) > epsilon * norm:  # on one side at least there is a gradient
        return decision
    kind = ZeroGradient.CERTAIN if is_fine or _gradient_group(measure) in passing else ZeroGradient.POSSIBLE
    return _with_cause(decision, kind, _NORMS.format(*norms, epsilon, norm))


def _mark_decayed_states(measures: Sequence[Measure], marked: list[Decision], largest: Mapping[GradientGroup, float]) -> None:
    """Mark the states that are off by the rounding of a gradient that is nothing else, whatever their own size."""
    rounding = {  # parameter -> how far rounding may take its state
        _parameter(measure): _rounding(measure.reference_dtype) * largest.get(_gradient_group(measure), 0.0)
        for measure, decision in zip(measures, marked, strict=True)
        if measure.phase == GRADIENT and decision.zero_gradient is ZeroGradient.CERTAIN
    }
    for number, (measure, decision) in enumerate(zip(measures, marked, strict=True)):
        if not (rounding and _state(measure) and _fails_relatively(decision)):
            continue
        norms = None if find_class_failures(measure) else _bound_norms(measure)
        if norms is not None and norms[1] - norms[0] <= rounding.get(_parameter(measure), -1.0):
            marked[number] = _with_cause(decision, ZeroGradient.STEP)


def _rounding(dtype: str) -> float:
    """Return the largest share of another gradient that is rounding alone."""
    digits = float_facts(dtype).digits
    return (lines.ZERO_GRADIENT_FINE if digits >= lines.FINE_DIGITS else lines.ZERO_GRADIENT) * 2.0 ** (1 - digits)


def _with_cause(decision: Decision, kind: ZeroGradient, norms: str = "") -> Decision:
    """Return a decision with the status and the reason that a zero gradient gives it."""
    judged = replace(decision.judged, reason=_REASONS[kind].format(before=decision.judged.reason, norms=norms))
    if kind is ZeroGradient.POSSIBLE:
        return replace(decision, judged=judged, zero_gradient=kind)
    return replace(decision, judged=replace(judged, status="blind"), failed=frozenset(), zero_gradient=kind)


def _find_largest_norms(measures: Sequence[Measure]) -> Mapping[GradientGroup, float]:
    """Return the largest norm of a gradient in each group, counting for each the least that both sides have.

    Nothing is known of the norm of a gradient that is equal bit for bit, because nothing was measured of it. Its group then has
    at least the median of the other groups of the same step.
    """
    largest: dict[GradientGroup, float] = defaultdict(float)
    equal: set[GradientGroup] = set()
    for measure in measures:
        if not _is_of_gradients(measure):
            continue
        group = _gradient_group(measure)
        if measure.equal:
            equal.add(group)
        elif norms := _bound_norms(measure):
            reference, most = norms
            # The target has at least |y| - |d| = 2 |y| - (|y| + |d|).
            largest[group] = max(largest[group], 2 * reference - most)
    norms_of_step: dict[tuple[str, ...], list[float]] = defaultdict(list)  # ordered, for each step and state
    places: dict[GradientGroup, int] = {}
    for group, norm in sorted(largest.items(), key=lambda item: item[1]):
        if norm > 0:
            places[group] = len(norms_of_step[group[1:]])
            norms_of_step[group[1:]].append(norm)
    for group in equal:
        if (median := _median_without(norms_of_step[group[1:]], places.get(group))) is not None:
            largest[group] = max(largest[group], median)
    return largest


def _median_without(ordered: Sequence[float], place: int | None) -> float | None:
    """Return the median of ordered numbers without the one at a place; ``None`` if no other is there.

    A step has as many groups as a model has modules: sorting them again for each would take the square of that.

    >>> _median_without([1.0, 2.0, 4.0, 9.0], 1), _median_without([1.0, 2.0], None), _median_without([1.0], 0)
    (4.0, 1.5, None)
    """
    left = len(ordered) - (place is not None)
    if not left:
        return None
    low, high = ((number + (place is not None and number >= place)) for number in ((left - 1) // 2, left // 2))
    return ordered[low] if low == high else (ordered[low] + ordered[high]) / 2


def _has_largest_norm(measure: Measure, largest: Mapping[GradientGroup, float]) -> bool:
    """Tell whether the other gradients of the group are measured by this one."""
    norms = _bound_norms(measure)
    return measure.equal or (norms is not None and 2 * norms[0] - norms[1] == largest[_gradient_group(measure)])


def _bound_norms(measure: Measure) -> tuple[float, float] | None:
    """Return the norm of the reference and an upper bound of the target's; ``None`` if the measure does not give them.

    No norm is kept. relative_l2 is ``|d| / |y|`` and rmse is ``|d| / sqrt(n)``, so ``|y| = rmse sqrt(n) / relative_l2``, and
    ``|x| <= |y| + |d|``.
    """
    relative, error = measure.metrics.get("relative_l2"), measure.metrics.get("rmse")
    if not relative or error is None or not math.isfinite(error):
        return None
    root = math.sqrt(max(0, measure.ordinary_elements))
    reference = error * root / relative  # 0 for a reference of zeros, whose relative error is infinite
    return reference, reference + measure.ranges.get("rmse", (error, error))[1] * root


def _fails_relatively(decision: Decision) -> bool:
    """Tell whether a record fails relative limits alone, and fixed ones: a measured limit knows what rounding does to it."""
    return (
        bool(decision.failed)
        and decision.judged.floor is None
        and all(find_metric(condition.metric).is_relative for condition in decision.failed)
    )


def _is_of_gradients(measure: Measure) -> bool:
    """Tell whether a record is a gradient, or the part of an optimizer's state that is made of one's gradients."""
    return measure.phase == GRADIENT or (measure.phase == OPTIMIZER and bool(_state(measure)))


def _gradient_group(measure: Measure) -> GradientGroup:
    return measure.module, _parameter(measure)[2], _state(measure)


def _parameter(measure: Measure) -> ParameterKey:
    index, _, when = _index(measure).partition("@")
    return measure.module, index.partition(".")[0], when


def _state(measure: Measure) -> str:
    """Return the name of an optimizer's state, ``""`` for a weight and a gradient: ``exp_avg`` of ``weight.exp_avg@1``."""
    return _index(measure).partition("@")[0].partition(".")[2]


def _index(measure: Measure) -> str:
    """Return the end of a record's identity: ``weight.exp_avg@1`` of ``layers.0/optimizer.output.weight.exp_avg@1``."""
    return measure.record.rpartition("/")[2].split(".", 2)[2]

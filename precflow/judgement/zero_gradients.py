"""Gradients that are nothing but rounding: no relative limit has a meaning for them.

A gradient that is zero in exact arithmetic (the bias of an attention's keys, for softmax does not see it) is what rounding
leaves of a sum that cancels, and differs by its whole size between devices. It stands out by its norm, which is below the
rounding of its module's other gradients: at most 0.4 epsilon of the weight's for keys, and 3.7 (bfloat16) to a million times
epsilon (float32) for every other bias of a text encoder of six layers.

A bias and a weight are sums over the same arrivals, the weight's times the inputs. So in float32 and float64 a bias is never
that small but by cancelling: rows of inputs would need a norm of four millions. Such a record is blind, where it is so small on
*both* sides: a side that is not has a gradient that the other lacks, and fails. In low precision 64 is enough, which inputs do
have; there it fails and is told. The same holds for an optimizer's state that is made of such gradients, and the weight behind
them is blind with it: Adam makes whole steps of noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import GRADIENT, OPTIMIZER
from precflow.comparison.measures import Measure
from precflow.dumps.dtypes import coarsest, float_facts
from precflow.judgement.decision import Decision, fails_by_class
from precflow.judgement.verdicts import Judged
from precflow.metrics import find_metric

_EPSILONS = 2.0  # of the largest gradient of the module: two sides with half of it each
_REMARK = "both sides are below the rounding of its module's largest gradient ({:.2g}, {:.2g} against {:.2g} times {:.2g})"
_MAY_BE = "it may be zero but for rounding, as the bias of an attention's keys is: an accepted difference takes it"
_IS = "it is zero but for rounding, as the bias of an attention's keys is"
_STEPPED = "the optimizer steps by a gradient that is zero but for rounding"
_FINE_DIGITS = 24  # float32 and float64

Place = tuple[str, str, str]
"""A module, step and rank, and the optimizer's state or ``""``: the gradients in one place are made of the same arrivals."""


Parameter = tuple[str, str, str]
"""Module, name of the parameter, and step and rank."""


def told_apart(measures: Sequence[Measure], decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions: failing gradients that are nothing but rounding are blind; those that may be fail and say so."""
    largest = _largest(measures)
    told = [_told(measure, one, largest) for measure, one in zip(measures, decisions, strict=True)]
    noisy, failing = set[Parameter](), set[Parameter]()
    for measure, one in zip(measures, told, strict=True):
        if one.judged.status == "blind" and one.judged.reason.endswith(_IS):
            noisy.add(_parameter(measure))
        elif one.failed and _is_of_gradients(measure):
            failing.add(_parameter(measure))
    noisy -= failing
    return [_stepped(measure, one, noisy) for measure, one in zip(measures, told, strict=True)] if noisy else told


def may_be_rounding(judged: Sequence[Judged]) -> list[str]:
    """Return identities of the records that fail and may be nothing but rounding."""
    return [one.record for one in judged if one.reason.endswith(_MAY_BE)]


def _largest(measures: Sequence[Measure]) -> Mapping[Place, float]:
    """Return the largest norm of a gradient by place: that which both sides have at least."""
    found: dict[Place, float] = defaultdict(float)
    for measure in measures:
        if _is_of_gradients(measure) and (both := _norms(measure)):
            reference, most = both
            found[_place(measure)] = max(found[_place(measure)], 2 * reference - most)
    return found


def _told(measure: Measure, decision: Decision, largest: Mapping[Place, float]) -> Decision:
    """Return the decision about one record; one that fails a limit in the tensor's own unit stays as it is."""
    both = _norms(measure) if _is_of_gradients(measure) and _fails_relatively(decision) else None
    dtype = coarsest([measure.reference_dtype, measure.target_dtype])
    if both is None or not dtype or fails_by_class(measure):
        return decision
    digits = float_facts(dtype).digits
    epsilon, norm = _EPSILONS * 2.0 ** (1 - digits), largest.get(_place(measure), 0.0)
    if max(both) > epsilon * norm:
        return decision
    said = _REMARK.format(*both, epsilon, norm)
    if digits < _FINE_DIGITS:
        return replace(decision, judged=replace(decision.judged, reason=f"{decision.judged.reason}; {said}; {_MAY_BE}"))
    return replace(decision, judged=replace(decision.judged, status="blind", reason=f"{said}; {_IS}"), failed=frozenset())


def _stepped(measure: Measure, decision: Decision, noisy: Collection[Parameter]) -> Decision:
    """Return the decision about a weight behind a step; blind where the step is one of noise."""
    is_weight = measure.phase == OPTIMIZER and not _state(measure)
    if not is_weight or _parameter(measure) not in noisy or not _fails_relatively(decision):
        return decision
    return replace(decision, judged=replace(decision.judged, status="blind", reason=_STEPPED), failed=frozenset())


def _fails_relatively(decision: Decision) -> bool:
    return bool(decision.failed) and all(find_metric(condition.metric).is_relative for condition in decision.failed)


def _is_of_gradients(measure: Measure) -> bool:
    """Tell whether a record is a gradient, or the part of an optimizer's state that is made of one's gradients."""
    return measure.phase == GRADIENT or (measure.phase == OPTIMIZER and bool(_state(measure)))


def _norms(measure: Measure) -> tuple[float, float] | None:
    """Return the norm of the reference and the most that the target's can be; ``None`` where the measure does not tell."""
    relative, error = measure.metrics.get("relative_l2"), measure.metrics.get("rmse")
    if not relative or error is None or not math.isfinite(error):
        return None
    counts = measure.counts
    root = math.sqrt(max(0, counts.get("elements", 0) - counts.get("sentinel", 0) - counts.get("nonfinite", 0)))
    reference = error * root / relative  # 0 for a reference of zeros, whose relative error is infinite
    return reference, reference + measure.ranges.get("rmse", (error, error))[1] * root


def _place(measure: Measure) -> Place:
    """Return where a gradient belongs."""
    return measure.module, _parameter(measure)[2], _state(measure)


def _parameter(measure: Measure) -> Parameter:
    """Return what its gradient, its weight and its state have in common."""
    index, _, when = _index(measure).partition("@")
    return measure.module, index.partition(".")[0], when


def _state(measure: Measure) -> str:
    """Return the name of an optimizer's state, ``""`` for a weight and a gradient."""
    return _index(measure).partition("@")[0].partition(".")[2]


def _index(measure: Measure) -> str:
    """Return the index of a record, with step and rank: the end of its identity."""
    return measure.record.rpartition("/")[2].split(".", 2)[2]

"""Gradients that fail and may be nothing but rounding: said beside them, and never a pass.

A gradient that is zero in exact arithmetic (the bias of an attention's keys, for softmax does not see it) is what rounding
leaves of a sum that cancels, and differs by its whole size between devices. It stands out by its norm, which is below the
rounding of its module's other gradients: at most 0.4 epsilon of the weight's for keys, and 3.7 (bfloat16) to a million times
epsilon (float32) for every other bias of a text encoder of six layers. That is no proof, for inputs of large values make
the weight's gradient large too, so that the record keeps its status.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.comparison.measures import Measure
from precflow.dumps.dtypes import coarsest, float_facts
from precflow.judgement.verdicts import Judged

_PHASE = "gradient"
_EPSILONS = 2.0  # of the largest gradient of the module: two sides with half of it each
_REMARK = "both sides are below the rounding of its module's largest gradient ({:.2g}, {:.2g} against {:.2g} times {:.2g})"
_ADVICE = "it may be zero but for rounding, as the bias of an attention's keys is: an accepted difference takes it"

Place = tuple[str, str]
"""A module, and step and rank: the gradients in one place are made of the same arrivals."""


def remarked(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[Judged]:
    """Return the statuses, those of failing gradients with the remark where they may be nothing but rounding."""
    largest = _largest(measures)
    return [
        replace(one, reason=f"{one.reason}; {said}") if (said := _remark(measure, one, largest)) else one
        for measure, one in zip(measures, judged, strict=True)
    ]


def of_rounding(judged: Sequence[Judged]) -> list[str]:
    """Return identities of the records that have the remark."""
    return [one.record for one in judged if one.reason.endswith(_ADVICE)]


def _largest(measures: Sequence[Measure]) -> Mapping[Place, float]:
    """Return the largest norm of a gradient by place, of either side the smaller."""
    found: dict[Place, float] = defaultdict(float)
    for measure in measures:
        if measure.phase == _PHASE and (both := _norms(measure)):
            found[_place(measure)] = max(found[_place(measure)], min(both))
    return found


def _remark(measure: Measure, judged: Judged, largest: Mapping[Place, float]) -> str:
    """Return the remark of a record, ``""`` where it has none."""
    both = _norms(measure) if measure.phase == _PHASE and judged.status == "fail" else None
    dtype = coarsest([measure.reference_dtype, measure.target_dtype])
    if both is None or not dtype:
        return ""
    epsilon = _EPSILONS * 2.0 ** (1 - float_facts(dtype).digits)
    norm = largest.get(_place(measure), 0.0)
    return f"{_REMARK.format(*both, epsilon, norm)}; {_ADVICE}" if max(both) <= epsilon * norm else ""


def _norms(measure: Measure) -> tuple[float, float] | None:
    """Return the norm of the reference and the most that the target's can be; ``None`` where the measure does not tell."""
    relative, error = measure.metrics.get("relative_l2"), measure.metrics.get("rmse")
    if not relative or error is None or not math.isfinite(error):
        return None
    counts = measure.counts
    ordinary = counts.get("elements", 0) - counts.get("sentinel", 0) - counts.get("nonfinite", 0)
    distance = error * math.sqrt(max(ordinary, 0))
    reference = distance / relative  # 0 for a reference of zeros, whose relative error is infinite
    return reference, reference + distance


def _place(measure: Measure) -> Place:
    """Return where a gradient belongs; step and rank are the end of its identity."""
    return measure.module, measure.record.rpartition("/")[2].partition("@")[2]

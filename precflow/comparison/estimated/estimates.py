"""Computes metrics of pairs for which not both tensors were kept: exact, estimated or bounded, else absent with a reason.

Equal content ids mean equal bits, so every error is exactly 0. Two sketches give the norm of the difference with an error of
3.1 % (root mean square). Statistics give only bounds. A metric that cannot be computed is absent, never 0, so that no record
passes because something was not kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace

from precflow.agent.contract import DETAILS, FILLS
from precflow.comparison.estimated import bounds
from precflow.comparison.estimated.exclusions import ExclusionMatch, match_exclusions
from precflow.comparison.estimated.kept_evidence import EvidenceSource, KeptTensor, load_kept
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.close_tolerances import rungs_from
from precflow.comparison.fused.summary import Summary
from precflow.comparison.measure import Measure, fill
from precflow.comparison.metric_values import MetricValues
from precflow.dumps.dtypes import coarsest, is_floating
from precflow.dumps.records import Record, Statistics
from precflow.errors import DumpError
from precflow.metrics import METRICS, Domain

_SINGLE = "needs single elements"


def needs_estimate(measure: Measure, left: Record, right: Record) -> bool:
    """Tell whether a pair has to be measured here, because its two tensors cannot be read and compared as wholes.

    So it is if a tensor was not stored, or if the sides kept different parts of it. It is also so for a part of a tensor whose
    content ids are equal: then all of it is known to be equal.
    """
    parts = (left.share, left.part) != (right.share, right.part)
    return not (left.stored and right.stored) or parts or (measure.equal and left.share < 1)


def estimate_pair(  # noqa: PLR0913, PLR0917  a pair, both dumps, and the constants of masks
    measure: Measure,
    left: Record,
    right: Record,
    reference: EvidenceSource,
    target: EvidenceSource,
    constants: tuple[float, ...] = FILLS,
) -> Measure:
    """Measure a pair for which not both tensors were stored.

    Args:
        measure: What is known about the pair so far; ``equal`` says that the bits are the same.
        left: Record of the reference.
        right: Record of the target, same shape.
        reference: Dump of the reference.
        target: Dump of the target.
        constants: Constants that count as mask fills.

    Returns:
        Another measure with metrics, ranges of those that are not exact, and reasons why others are absent. If only a part of
        the tensor was kept, they are about that part; only ``bitwise_equal`` is always about the whole tensor.
    """
    measure = replace(measure)  # the one copy that is made; everything below fills it
    if measure.equal:
        return _measure_equal(measure, left)
    # Two different content ids show at least that the bits differ. Without them, both sides need numbers.
    if not (left.content and right.content) and not (_has_counts(left) and _has_counts(right)):
        without = " and ".join(side for side, record in (("reference", left), ("target", right)) if not _has_counts(record))
        return fill(measure, join="sampled_out", evidence="", reason=f"the {without} kept no tensor of it")
    if any(record.statistics is not None and record.statistics.rounding is not None for record in (left, right)):
        constants = ()  # another tool's numbers are over all elements, and so are those of a tensor beside them
    try:
        first, second = _load_side("reference", left, reference, constants), _load_side("target", right, target, constants)
    except DumpError as error:
        return fill(measure, join="unreadable", evidence="", reason=error.message)
    # The comparison is only as good as the side that kept less.
    least = min(first.evidence, second.evidence, key=DETAILS.index)
    size = _count_elements(left, left.share)
    # Content ids are those of whole tensors, even if only a part was kept; equal ones were handled above.
    bits = {"bitwise_equal": 0.0} if left.dtype != right.dtype or (left.content and right.content) else {}
    measure = fill(measure, evidence=least, share=left.share, metrics=bits, counts={"elements": size})
    if (left.share, left.part) != (right.share, right.part):
        return _give_up(measure, "the sides kept different parts of it")
    return _estimate(measure, first, second, size, constants)


def _load_side(side: str, record: Record, dump: EvidenceSource, constants: tuple[float, ...]) -> KeptTensor:
    """Return what a dump kept of a record; the message of an error names the side."""
    try:
        return load_kept(record, dump, constants)
    except DumpError as error:
        raise DumpError(f"{side}: {error.message}") from error


def _has_counts(record: Record) -> bool:
    return record.stored or record.statistics is not None


def _measure_equal(measure: Measure, record: Record) -> Measure:
    """Return the metrics of a pair with equal bits, and the counts of values that are excluded from sums."""
    # Counts are known only if statistics were kept of the whole tensor; else every element counts as an ordinary number.
    known = record.statistics
    size = _count_elements(record, 1.0)
    nonfinite, sentinel = (known.nonfinite, known.sentinel) if known and record.share == 1 else (0, 0)
    metrics, counts = _count_equal(record.dtype, size, nonfinite, sentinel, inexact=measure.judged)
    warnings = (f"{nonfinite} NaN or Inf, equal in kind and place on both sides",) if nonfinite else ()
    return fill(measure, evidence="digest", metrics=metrics, counts=counts, warnings=warnings)


@functools.lru_cache(maxsize=1024)
def _count_equal(
    dtype: str, size: int, nonfinite: int, sentinel: int, *, inexact: bool
) -> tuple[Mapping[str, float], Mapping[str, int]]:
    """Return metrics and counts of equal bits: thousands of tensors have the same ones, which no caller changes."""
    fills = Summary(
        inexact=inexact,
        elements=sentinel,
        within_one_thousandth=sentinel,
        within_five_thousandths=sentinel,
        close=dict.fromkeys(rungs_from(coarsest([dtype])), sentinel),
    )
    summary = Summary(
        inexact=inexact,
        elements=size,
        nonfinite=nonfinite,
        sentinel=sentinel,
        within_one_thousandth=size - nonfinite - sentinel,
        within_five_thousandths=size - nonfinite - sentinel,
        close=dict.fromkeys(rungs_from(coarsest([dtype])), size - nonfinite - sentinel),
        fills=fills if sentinel else None,
    )
    return MetricValues(measure_all(summary)), {"elements": size, "sentinel": sentinel, "nonfinite": nonfinite}


def _count_elements(record: Record, share: float) -> int:
    """Return the number of elements in a share of a tensor; a complex number counts as two."""
    whole = math.prod(record.shape) * (2 if record.dtype.startswith("complex") else 1)
    return round(whole * share)


def _estimate(measure: Measure, first: KeptTensor, second: KeptTensor, size: int, constants: tuple[float, ...]) -> Measure:
    one, other = first.statistics, second.statistics
    excluded = match_exclusions(first, second, constants)
    if one is None or other is None or excluded.unknown:
        return _give_up(measure, excluded.unknown)
    # Counts first: they fail a record by themselves, even if no metric can be computed below.
    measure = fill(measure, counts=_count_classes(size, one, other, excluded))
    if not excluded.agree:  # the sums of the two sides are over different elements then
        return _give_up(measure, "the sides leave out different elements")
    masked = measure.counts["infinity_for_sentinel"]
    warnings = (
        (measure.counts["nonfinite"] - masked, "{} NaN or Inf, equal in kind and place on both sides"),
        (masked, "{} places hold -inf on one side and a mask's fill value on the other"),
        (measure.counts["sentinel"], "{} elements hold a mask's fill value on both sides and are measured by themselves"),
    )
    measure = fill(measure, warnings=tuple(text.format(count) for count, text in warnings if count > 0))
    count = size - one.nonfinite - one.sentinel
    if count <= 0:
        return _give_up(measure, "it holds no ordinary number")
    y, x = bounds.sum_side(first, count), bounds.sum_side(second, count)
    if isinstance(y, str) or isinstance(x, str):
        return _give_up(measure, y if isinstance(y, str) else str(x))
    if y.norm:
        measure = fill(measure, peak=y.largest / y.norm * math.sqrt(count), row_peak=bounds.find_row_peak(first))
    far = bounds.bound_distance(y, x, first, second)
    known = bounds.bound_metrics(y, x, far, first, second)
    if excluded.fill_error:
        known = bounds.add_fills(known, excluded.fill_error, excluded.fill_size)
    unmet = set[Domain]()
    if min(y.minimum, x.minimum) < 0:  # probabilities are never negative
        unmet.add("distributions")
    if not y.largest:
        unmet.add("quotients")
    if not (is_floating(measure.reference_dtype) or is_floating(measure.target_dtype)):
        unmet |= {"floats", "quotients", "distributions", "tolerances"}
    return _sort_metrics(
        measure,
        bounds.guess_metrics(y, x, far),
        known,
        _list_metrics_of(frozenset(unmet)) | _find_without_tolerances(measure),
    )


def _sort_metrics(
    measure: Measure, guessed: Mapping[str, float], known: Mapping[str, bounds.Bounds], meaningless: frozenset[str]
) -> Measure:
    """Sort metrics into numbers (exact or estimated) and ranges, and give a reason for each that is absent."""
    known = {name: limits for name, limits in known.items() if name not in meaningless}
    # A range of a single point is an exact number, which takes precedence over an estimate.
    fixed = {name: low for name, (low, high) in known.items() if low == high}
    metrics = {**{name: value for name, value in guessed.items() if name in known}, **fixed, **measure.metrics}
    return fill(
        measure,
        metrics={name: metrics[name] for name in METRICS if name in metrics},
        ranges={name: limits for name, limits in known.items() if name not in fixed},
        absent=_explain_absent(frozenset({*metrics, *known, *meaningless}), _SINGLE),
    )


def _give_up(measure: Measure, reason: str) -> Measure:
    """Return a measure of which at most ``bitwise_equal`` is known; every other metric is absent for the given reason."""
    without = _find_without_tolerances(measure)
    return fill(measure, absent=_explain_absent(frozenset({*measure.metrics, *without}), reason))


@functools.lru_cache(maxsize=256)
def _explain_absent(known: frozenset[str], reason: str) -> Mapping[str, str]:
    """Return the reason for every metric but some; thousands of measures have the same ones, which no caller changes."""
    return {name: reason for name in METRICS if name not in known}


def _find_without_tolerances(measure: Measure) -> frozenset[str]:
    """Return the metrics for tolerances of types more precise than the less precise type of the pair; they are not measured."""
    return _list_other_tolerances(measure.reference_dtype, measure.target_dtype)


@functools.lru_cache(maxsize=256)
def _list_other_tolerances(reference: str, target: str) -> frozenset[str]:
    rungs = rungs_from(coarsest([reference, target]))
    shares = (metric for metric in METRICS.values() if metric.domain == "tolerances")
    return frozenset(metric.name for metric in shares if not (metric.dtype in rungs if metric.dtype else rungs))


@functools.lru_cache(maxsize=64)
def _list_metrics_of(domains: frozenset[Domain]) -> frozenset[str]:
    return frozenset(name for name, metric in METRICS.items() if metric.domain in domains)


def _count_classes(size: int, one: Statistics, other: Statistics, found: ExclusionMatch) -> dict[str, int]:
    """Return the counts of classes of values, as for stored tensors; if their positions differ, these are lower bounds."""
    nonfinite = max(one.nonfinite, other.nonfinite)
    excluded = max(one.nonfinite + one.sentinel, other.nonfinite + other.sentinel)
    return {
        "elements": size,
        "sentinel": excluded - nonfinite,
        "nonfinite": nonfinite,
        "sentinel_mismatch": found.sentinel_mismatch,
        "other_fill": found.other_fill,
        "saturated_mismatch": found.saturated_mismatch,
        "nonfinite_mismatch": found.nonfinite_mismatch,
        "infinity_for_sentinel": found.infinity_for_sentinel,
    }

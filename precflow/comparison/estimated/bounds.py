"""Computes lower and upper bounds of metrics from sums over each side and, if there are sketches, from their distance.

y is the reference, x the target, d = x - y, as in ``comparison/metrics/``; all norms are Euclidean. The bounds hold
whatever the elements are: by the triangle inequality, for example, ``|d|`` lies between ``||x| - |y||`` and ``|x| + |y|``.
Only the range of a sketch may be wrong, as rarely as docs/estimates.md says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from precflow.comparison.estimated.kept_evidence import MOST_ROWS, KeptTensor
from precflow.comparison.estimated.sketch import DECISIVE, estimate_norm
from precflow.comparison.fused.close_tolerances import RUNGS, rungs_from
from precflow.comparison.fused.row_norms import MOST_ROWS as MOST_MEASURED_ROWS
from precflow.comparison.fused.row_norms import RowNorms
from precflow.comparison.fused.value_classes import Floats
from precflow.dumps.dtypes import coarsest
from precflow.metrics import METRICS

Bounds = tuple[float, float]

ROUNDING = 2.0**-20
"""Error of an agent's sums, relative to the sum of magnitudes, and of its norms: rows of 512 values are added up in float32."""

_OFFSET = 1e-7  # added to the denominators of mare and mere
_TELLING = 4.0  # an estimate of the cosine is shown only if 1 - cosine varies by at most this factor within its range
_TINY = 2.0**-20  # of the longer vector; if the other is shorter, their difference says nothing about its direction
_ROUNDED = 2.0**-50  # error of a few operations in float64, relative to the largest operand
_SMALLEST_SQUARE = 2.0**-1000  # mean square below which float64 loses squares; agents scale values that float32 would lose
_SMALLEST_NORM = 2.0**-62  # magnitude of an element below which its square is lost in the float32 norm of a row


@dataclass(frozen=True, slots=True)
class SideSums:
    """Sums over the ordinary elements of one side.

    Attributes:
        count: Number of ordinary elements.
        minimum: Smallest.
        maximum: Largest.
        total: Their sum.
        norm: Their Euclidean norm.
        rounding: Error of ``total`` and ``norm``, relative to the norm; 0 if they were computed in float64.
    """

    count: int
    minimum: float
    maximum: float
    total: float
    norm: float
    rounding: float

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def smallest(self) -> float:
        """A lower bound of all magnitudes: 0 if both signs occur."""
        return max(self.minimum, -self.maximum, 0.0)

    @property
    def magnitudes(self) -> Bounds:
        """Lower and upper bound of the sum of magnitudes."""
        if self.minimum >= 0 or self.maximum <= 0:
            return abs(self.total), abs(self.total)
        # A sum of magnitudes is at least the norm, and by Cauchy and Schwarz at most sqrt(count) times the norm.
        return max(self.norm, abs(self.total)), math.sqrt(self.count) * self.norm


def sum_side(kept: KeptTensor, count: int) -> SideSums | str:
    """Return the sums of one side, or the reason in words why they cannot be used.

    Args:
        kept: What was kept of the tensor.
        count: Number of its ordinary elements, at least 1.
    """
    known = kept.statistics
    if known is None or known.minimum is None or known.maximum is None or known.sum is None or known.square is None:
        return "its sums were not kept"
    if not all(map(math.isfinite, (known.minimum, known.maximum, known.sum, known.square))):
        return "the squares of its values leave the range of their sum"
    largest = max(abs(known.minimum), abs(known.maximum))
    if largest > 0 and known.square < _SMALLEST_SQUARE * count:
        return "its values are so small that their squares are lost"
    # The sum of squares lies between that of the largest element alone and that of ``count`` such elements, give or take
    # rounding. Other numbers come from a damaged or made-up record.
    beyond = (1 + max(_find_rounding(kept), ROUNDING)) ** 2
    if not largest * largest / beyond <= known.square <= largest * largest * count * beyond:
        return "its sum of squares cannot be that of its values"
    rounding = _find_rounding(kept)
    return SideSums(count, known.minimum, known.maximum, known.sum, math.sqrt(known.square), rounding)


def _find_rounding(kept: KeptTensor) -> float:
    """Return the error of the sums of a side, relative to its norm; other tools make theirs in the type of the tensor."""
    if kept.exact or kept.statistics is None:
        return 0.0
    return ROUNDING if kept.statistics.rounding is None else kept.statistics.rounding


@dataclass(frozen=True, slots=True)
class Distance:
    """Bounds and an estimate of ``|d|``, the norm of the difference of two tensors.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        estimate: Estimate from sketches; ``None`` without sketches, or if a bound that always holds proves the estimate wrong.
            Differences may fall into the same bucket of a sketch and cancel there.
        largest: Lower and upper bound of the largest single element of ``|d|``.
    """

    low: float
    high: float
    estimate: float | None
    largest: Bounds


def bound_distance(y: SideSums, x: SideSums, left: KeptTensor, right: KeptTensor) -> Distance:
    """Return bounds of the norm of the difference, from the sums, sketches and row norms of both sides.

    Args:
        y: Sums of the reference.
        x: Sums of the target.
        left: The reference, for its sketch and rows.
        right: The target.
    """
    slack = max(y.rounding, x.rounding) * (y.norm + x.norm)
    rows = _find_rows(left, right)
    # If the maximum rose from 3 to 5, some element differs by at least 2: where x is 5, y is at most 3.
    apart = max(abs(x.minimum - y.minimum), abs(x.maximum - y.maximum))
    low = max(
        apart,
        abs(x.norm - y.norm) - slack,
        abs(x.total - y.total) / math.sqrt(y.count) - slack,
        (estimate_norm(rows[1] - rows[0]) if rows else 0.0) - slack,  # by the triangle inequality, row by row
    )
    widest = max(x.maximum - y.minimum, y.maximum - x.minimum)
    high = max(low, min(x.norm + y.norm + slack, math.sqrt(y.count) * widest))
    sketched = None if left.sketch is None or right.sketch is None else estimate_norm(right.sketch - left.sketch)
    error = max(left.resolution, right.resolution) * max(x.norm, y.norm)
    estimate = None if sketched is None or sketched / DECISIVE + error < low else min(max(sketched, low), high)
    if sketched is not None and estimate is not None:
        low = min(high, max(low, DECISIVE * sketched - error))
        high = max(low, min(high, sketched / DECISIVE + error))
    single = max(apart, low / math.sqrt(y.count)), max(apart, min(widest, high))
    return Distance(low, high, estimate, single)


def _find_rows(left: KeptTensor, right: KeptTensor) -> tuple[Floats, Floats] | None:
    """Return the row norms of both sides, or ``None`` unless both sides kept them for the same rows."""
    if left.rows is None or right.rows is None or left.rows.shape != right.rows.shape or not left.rows.size:
        return None
    return left.rows, right.rows


def bound_metrics(y: SideSums, x: SideSums, far: Distance, left: KeptTensor, right: KeptTensor) -> dict[str, Bounds]:
    """Return lower and upper bounds of metrics; metrics that cannot be bounded are absent."""
    known = dict(_bound_by_distance(y, x, far))
    known |= _bound_close_shares(y, far, coarsest((left.dtype, right.dtype)))
    worst = _bound_worst_row(y, far, left, right)
    return known | ({"worst_row_error": worst} if worst else {})


def add_fills(known: Mapping[str, Bounds], error: float, size: float) -> dict[str, Bounds]:
    """Widen bounds by the error of mask fills: a metric is the worse of its values over ordinary elements and over fills.

    Args:
        known: The bounds over ordinary elements.
        error: Upper bound of the distance of two fills at the same position.
        size: Smallest magnitude of a fill of the reference, above 0.
    """
    relative = error / size
    share = {name: error <= RUNGS[name][1] + RUNGS[name][0] * size for name in RUNGS}
    widened = {}
    for name, (low, high) in known.items():
        metric = METRICS[name]
        if name == "cosine_similarity":
            widened[name] = (min(low, max(-1.0, 1 - relative * relative)), high)
        elif metric.domain == "tolerances":
            widened[name] = (low if all(share.values()) or share.get(metric.dtype, False) else 0.0, high)
        else:
            widened[name] = (low, max(high, error if metric.unit == "value" else relative))
    return widened


def guess_metrics(y: SideSums, x: SideSums, far: Distance) -> dict[str, float]:
    """Return estimates of the metrics that follow from the norm of the difference; none without sketches.

    The cosine is left out if the difference of the vectors comes mostly from their lengths, because little is known about the
    angle between them then.
    """
    if far.estimate is None:
        return {}
    guesses = {"relative_l2": divide(far.estimate, y.norm), "rmse": far.estimate / math.sqrt(y.count)}
    best, worst = 1 - compute_cosine(y, x, far.low), 1 - compute_cosine(y, x, far.high)
    if min(y.norm, x.norm) < _TINY * max(y.norm, x.norm):
        return guesses
    return {"cosine_similarity": compute_cosine(y, x, far.estimate), **guesses} if worst <= _TELLING * best else guesses


def divide(numerator: float, denominator: float) -> float:
    """Return the quotient of two magnitudes; 0 / 0 is 0, and any other number divided by 0 is infinite.

    >>> divide(1.0, 4.0), divide(0.0, 0.0), divide(2.0, 0.0)
    (0.25, 0.0, inf)
    """
    if not numerator:
        return 0.0
    return numerator / denominator if denominator else math.inf


def compute_cosine(y: SideSums, x: SideSums, apart: float) -> float:
    """Return the cosine ``x.y / (|x| |y|)`` from three norms, as ``1 - (|d|^2 - (|x| - |y|)^2) / (2 |x| |y|)``.

    The law of cosines in this form does not subtract nearly equal numbers where the vectors are close, so no digits are lost.

    Args:
        y: Sums of the reference.
        x: Sums of the target.
        apart: Norm of the difference, ``|d|``.
    """
    if not y.norm or not x.norm:
        return 1.0 if y.norm == x.norm else 0.0
    # All lengths are divided by the larger norm first, so that no square overflows or vanishes.
    larger = max(y.norm, x.norm)
    error, longer, product = apart / larger, (x.norm - y.norm) / larger, (x.norm / larger) * (y.norm / larger)
    if not product:
        return 0.0
    return max(-1.0, min(1.0, 1.0 - max(0.0, (error - longer) * (error + longer)) / (2 * product)))


def _bound_cosine(y: SideSums, x: SideSums, far: Distance) -> Bounds:
    """Return the bounds of the cosine: :func:`compute_cosine` at both bounds of the distance, widened by the norms' errors.

    If one vector is far shorter than the other, the difference says nothing about the angle, and the bounds become wide.
    """
    if not y.norm or not x.norm:
        return compute_cosine(y, x, far.high), compute_cosine(y, x, far.low)
    larger, off = max(y.norm, x.norm), 2 * max(y.rounding, x.rounding) + _ROUNDED
    longer, product = abs(x.norm - y.norm) / larger, 2 * (x.norm / larger) * (y.norm / larger)
    most = (max(0.0, far.high / larger - longer) + off) * (far.high / larger + longer + off)
    least = max(0.0, far.low / larger - longer - off) * (far.low / larger + longer)
    if not product:
        return -1.0, 1.0
    return max(-1.0, 1.0 - most * (1 + 2 * off) / product), max(-1.0, 1.0 - least * (1 - 2 * off) / product)


def _bound_by_distance(y: SideSums, x: SideSums, far: Distance) -> Iterator[tuple[str, Bounds]]:
    root, (largest_low, largest_high) = math.sqrt(y.count), far.largest
    # The mean of |d| is at least |sum of d| / count, and at least sum of d^2 / (count * max |d|), as d^2 <= |d| * max |d|.
    mean_low = max(abs(x.total - y.total) / y.count, divide(far.low * far.low, y.count * largest_high))
    mean_low = max(0.0, mean_low - max(x.rounding, y.rounding) * (x.norm + y.norm) / root)
    mean = min(mean_low, largest_high), max(mean_low, min(far.high / root, largest_high))
    yield "cosine_similarity", _bound_cosine(y, x, far)
    yield "max_abs_error", far.largest
    yield "mean_abs_error", mean
    yield "relative_l2", (divide(far.low, y.norm), divide(far.high, y.norm))
    yield "accumulated_relative_error", (divide(mean[0] * y.count, y.magnitudes[1]), divide(mean[1] * y.count, y.magnitudes[0]))
    yield "rmse", (far.low / root, far.high / root)
    yield "mare", (largest_low / (y.largest + _OFFSET), largest_high / (y.smallest + _OFFSET))
    yield "mere", (mean[0] / (y.largest + _OFFSET), mean[1] / (y.smallest + _OFFSET))
    yield "max_rms_error", (divide(largest_low * root, y.norm), divide(largest_high * root, y.norm))


def _bound_close_shares(y: SideSums, far: Distance, coarse: str) -> Mapping[str, Bounds]:
    """Return bounds of the shares of elements within ``assert_close``'s tolerances.

    By Chebyshev's inequality at most ``|d|^2 / absolute^2`` elements can differ by more than ``absolute``.
    """
    shares = {}
    for name in rungs_from(coarse):
        relative, absolute = RUNGS[name]
        beyond = 0.0 if far.largest[1] <= absolute else min(1.0, (far.high / absolute) * (far.high / absolute) / y.count)
        one_is = far.largest[0] > absolute + relative * y.largest
        shares[f"allclose_share_{name}"] = (1.0 - beyond, 1.0 - one_is / y.count)
    return {"allclose_share": next(iter(shares.values())), **shares} if shares else {}


def _bound_worst_row(y: SideSums, far: Distance, left: KeptTensor, right: KeptTensor) -> Bounds | None:
    """Return the bounds of the worst row's error from the norms of rows; ``None`` if they were not kept."""
    if len(left.shape) < 2:  # a vector is one row
        return divide(far.low, y.norm), divide(far.high, y.norm)
    kept_rows, count = _find_rows(left, right), math.prod(left.shape[:-1])
    if kept_rows is None or count > MOST_MEASURED_ROWS:
        return None
    here, there = kept_rows
    largest = max(1.0, float(here.max()), float(there.max()))  # agents scale a tensor with huge values down by about this much
    slack = ROUNDING * (here + there) + 2 * _SMALLEST_NORM * largest * math.sqrt(left.shape[-1])
    apart = np.maximum(np.abs(there - here) - slack, 0.0)
    if count > MOST_ROWS:  # a kept norm is that of a group of rows: one of them may be far worse, so there is no upper bound
        # A row's error is divided by its norm or by the median of the norms that are not 0, whichever is larger. Half of those
        # rows have at least the median norm, so the median is at most |y| sqrt(2 / rows). This bounds the Euclidean norm of
        # the divisors of a group's rows: its error divided by it is met or exceeded by at least one of them.
        together, filled = -(-count // len(here)), _count_filled_rows(left, here, count)
        divisors: Floats = np.hypot(here, math.sqrt(together * 2 / filled) * y.norm)
        return _find_largest_share(apart, divisors), math.inf
    scale = np.maximum(here, RowNorms(reference=here).median())
    low = max(_find_largest_share(apart, scale), divide(far.low, estimate_norm(scale)))
    return low, max(low, _find_largest_share(np.minimum(here + there + slack, far.high), scale))


def _count_filled_rows(kept: KeptTensor, norms: Floats, count: int) -> int:
    """Return the least number of rows that are not zero, from the norms of groups and from how many elements are zero."""
    zero = None if kept.statistics is None else kept.statistics.zero
    return max(1, int(np.count_nonzero(norms)), 0 if zero is None else count - int(zero) // kept.shape[-1])


def find_row_peak(kept: KeptTensor) -> float:
    """Return the largest norm of a row over the median of those that are not zero; 0 unless norms of single rows were kept."""
    if kept.rows is None or len(kept.shape) < 2 or math.prod(kept.shape[:-1]) > MOST_ROWS:
        return 0.0
    return RowNorms(reference=kept.rows).peak()


def _find_largest_share(apart: Floats, scale: Floats) -> float:
    wrong = apart > 0
    with np.errstate(divide="ignore", over="ignore"):
        return float(np.max(apart[wrong] / scale[wrong], initial=0.0))

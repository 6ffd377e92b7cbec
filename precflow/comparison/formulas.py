"""The formula of every metric: a pure function of a :class:`Summary`, named as its row in ``precflow/metrics.py`` is.

y is the reference, x the target, d = x - y. Denominators are the reference's. Sums and maxima run over *compared* pairs
(neither a mask fill nor NaN nor infinite); metrics that divide by single elements leave out small references (0, subnormal).
Pairs that are fills of one constant are measured by themselves in the same way, and a metric is the worse of the two numbers:
where both are within a limit on relative L2, so is that of all elements together.
0 against 0 is no error: relative errors are 0 and the cosine is 1. An error against a reference that is 0 as a whole is
infinite. A metric that has no meaning for a pair is absent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from precflow.comparison.fused.kl_divergence import combine_divergence
from precflow.comparison.fused.scaled_float import ScaledFloat, divide, divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import METRICS, Domain


def cosine_similarity(summary: Summary) -> float:
    """Return ``x.y / (|x| |y|)``, -1 to 1; 0 where only one side is 0.

    Near 1 it is taken from ``1 - cos = (|d|^2 - (|x| - |y|)^2) / (2 |x| |y|)``, which does not cancel.
    """
    y_norm, x_norm = summary.reference_square, summary.target_square
    if not y_norm.mantissa or not x_norm.mantissa:
        return 1.0 if y_norm.mantissa == x_norm.mantissa else 0.0
    scale = divide(x_norm, y_norm, root=True)
    error = divide(summary.difference_square, y_norm, root=True)
    if error < 0.5:
        return min(1.0, 1.0 - max(0.0, (error - (scale - 1)) * (error + (scale - 1))) / (2 * scale))
    # Mantissas and exponents separately: the product of two norms, or of all elements, may be beyond float64.
    y_root, x_root, product = _root(y_norm), _root(x_norm), summary.product
    mantissa = product.mantissa / (y_root.mantissa * x_root.mantissa)
    cosine = float(ScaledFloat.of(mantissa, product.exponent - y_root.exponent - x_root.exponent))
    return max(-1.0, min(1.0, cosine))


def _root(square: ScaledFloat) -> ScaledFloat:
    odd = square.exponent % 2
    return ScaledFloat.of(math.sqrt(math.ldexp(square.mantissa, odd)), (square.exponent - odd) // 2)


def max_abs_error(summary: Summary) -> float:
    """Return the largest ``|d|``, in the tensor's own unit; for integers too."""
    return float(summary.difference_max)


def mean_abs_error(summary: Summary) -> float:
    """Return ``sum |d| / n``, in the tensor's own unit."""
    return divide_by_count(summary.difference_sum, summary.compared)


def max_rel_error(summary: Summary) -> float:
    """Return the largest ``|d| / |y|``; elements with a small reference are left out."""
    return summary.relative_max


def mean_rel_error(summary: Summary) -> float:
    """Return the mean of ``|d| / |y|``; elements with a small reference are left out."""
    return divide_by_count(summary.relative_sum, summary.ordinary)


def relative_l2(summary: Summary) -> float:
    """Return the relative Euclidean distance ``|d| / |y|``."""
    return divide(summary.difference_square, summary.reference_square, root=True)


def accumulated_relative_error(summary: Summary) -> float:
    """Return ``sum |d| / sum |y|``."""
    return divide(summary.difference_sum, summary.reference_sum)


def kl_divergence(summary: Summary) -> float:
    """Return ``sum p log(p / q)`` in nats, ``p = y / sum y``, ``q = x / sum x``, over the tensor as one distribution.

    Only for tensors without negative values. A target of 0 where the reference is not counts as the smallest positive
    number of the target's type.
    """
    return combine_divergence(summary.divergence, summary.reference_sum, summary.target_sum)


def rmse(summary: Summary) -> float:
    """Return the root mean square of d, in the tensor's own unit."""
    return divide_by_count(summary.difference_square, summary.compared, root=True)


def mare(summary: Summary) -> float:
    """Return CANN's maximum relative error: the largest ``|d| / (|y| + 1e-7)``."""
    return summary.offset_relative_max


def mere(summary: Summary) -> float:
    """Return CANN's mean relative error: the mean of ``|d| / (|y| + 1e-7)``."""
    return divide_by_count(summary.offset_relative_sum, summary.compared)


def share_within_one_thousandth(summary: Summary) -> float:
    """Return the share of elements with ``|d| / |y| <= 0.001``; a small reference counts if the target is small too."""
    return summary.within_one_thousandth / summary.compared


def share_within_five_thousandths(summary: Summary) -> float:
    """Return the share of elements with ``|d| / |y| <= 0.005``; a small reference counts if the target is small too."""
    return summary.within_five_thousandths / summary.compared


def allclose_share(summary: Summary) -> float:
    """Return the share of elements with ``|d| <= atol + rtol |y|``, tolerances of ``assert_close`` for the coarser type."""
    return next(iter(summary.close.values())) / summary.compared


def ulp_distance(summary: Summary) -> float:
    """Return the largest distance in units in the last place, both sides rounded to the coarser of the two types."""
    return float(summary.ulp_max)


def mean_ulp_distance(summary: Summary) -> float:
    """Return the mean distance in units in the last place; elements with a small reference are left out."""
    return divide_by_count(summary.ulp_sum, summary.ordinary)


def max_rms_error(summary: Summary) -> float:
    """Return the largest ``|d|`` over the root mean square of y."""
    reference = divide_by_count(summary.reference_square, summary.compared, root=True)
    return divide(ScaledFloat.of(summary.difference_max), ScaledFloat.of(reference))


def worst_row_error(summary: Summary) -> float:
    """Return the largest ``|d_row| / max(|y_row|, median |y_row| > 0)``; a row is the last axis, or the whole vector."""
    return summary.rows.worst()


def bitwise_equal(summary: Summary) -> float:
    """Return 1 where both sides have one type and the same bits throughout, else 0."""
    return float(summary.unequal == 0)


def _share_close(summary: Summary, dtype: str) -> float:
    """Return the share of elements within ``assert_close``'s tolerances for one type: ``allclose_share_float32``..."""
    return summary.close[dtype] / summary.compared


_DOMAINS: Mapping[Domain, Callable[[Summary], bool]] = {
    "anything": lambda _: True,
    "numbers": lambda summary: summary.compared > 0,
    "floats": lambda summary: summary.inexact and summary.compared > 0,
    "quotients": lambda summary: summary.inexact and summary.ordinary > 0,
    "distributions": lambda summary: summary.inexact and summary.compared > 0 and not summary.negative,
    "tolerances": lambda summary: summary.inexact and summary.compared > 0 and bool(summary.close),
}
# Each row of METRICS has a function of its name above. `allclose_share_float32` and its like share one.
_FORMULAS: tuple[tuple[str, Domain, str, Callable[[Summary], float]], ...] = tuple(
    (
        metric.name,
        metric.domain,
        metric.dtype,
        functools.partial(_share_close, dtype=metric.dtype) if metric.dtype else globals()[metric.name],
    )
    for metric in METRICS.values()
)
# `bitwise_equal` looks at all elements anyway, and the divergence is of one distribution, of which fills are no part.
_NOT_OF_FILLS = frozenset({"bitwise_equal", "kl_divergence"})
_ROUNDED = 2  # units in the last place by which rounding alone sets fills apart: in the tensor's own unit that is no error


def measure_all(summary: Summary) -> dict[str, float]:
    """Return every metric that has a meaning for a summary, by name, in the order of the rows."""
    ordinary = _evaluate(summary)
    if summary.fills is None:
        return ordinary
    worst = dict(ordinary)
    fills = _evaluate(replace(summary.fills, rows=summary.fills.rows.filled()))
    rounded = summary.fills.ulp_max <= _ROUNDED
    for name in fills.keys() - _NOT_OF_FILLS:
        metric = METRICS[name]
        if name not in ordinary:
            worst[name] = fills[name]
        elif not (rounded and metric.unit == "value"):
            worst[name] = (min if metric.at_least else max)(ordinary[name], fills[name])
    return {name: worst[name] for name in METRICS if name in worst}


def find_peak(summary: Summary) -> float:
    """Return the largest magnitude of y over its root mean square, of compared elements; 0 without any, or if all are zero."""
    if not summary.compared or not summary.inexact:
        return 0.0
    mean = divide_by_count(summary.reference_square, summary.compared, root=True)
    return divide(ScaledFloat.of(summary.largest_reference), ScaledFloat.of(mean)) if mean else 0.0


def _evaluate(summary: Summary) -> dict[str, float]:
    """Return the metrics of one population: ordinary numbers, or fills."""
    met = {domain: is_met(summary) for domain, is_met in _DOMAINS.items()}  # once for all metrics that share it
    return {
        name: formula(summary)
        for name, domain, dtype, formula in _FORMULAS
        if met[domain] and (not dtype or dtype in summary.close)  # no share by tolerances finer than the coarser type
    }

"""Every metric as a pure function of a :class:`Summary`.

y is the reference, x the target, d = x - y. Denominators are the reference's. Sums and maxima run over *compared* pairs
(neither a mask fill nor NaN nor infinite); metrics that divide by single elements leave out small references (0, subnormal).
Pairs that are fills of one constant are measured by themselves in the same way, and a metric is the worse of the two numbers:
where both are within a limit on relative L2, so is that of all elements together.
0 against 0 is no error: relative errors are 0 and the cosine is 1. An error against a reference that is 0 as a whole is
infinite. A metric that has no meaning for a pair is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from precflow.comparison.fused.kl_divergence import divergence
from precflow.comparison.fused.ladder import RUNGS
from precflow.comparison.fused.scaled import Scaled, mean, ratio
from precflow.comparison.fused.summary import Summary


def cosine_similarity(summary: Summary) -> float:
    """Return ``x.y / (|x| |y|)``, -1 to 1; 0 where only one side is 0.

    Near 1 it is taken from ``1 - cos = (|d|^2 - (|x| - |y|)^2) / (2 |x| |y|)``, which does not cancel.
    """
    y_norm, x_norm = summary.reference_square, summary.target_square
    if not y_norm.mantissa or not x_norm.mantissa:
        return 1.0 if y_norm.mantissa == x_norm.mantissa else 0.0
    scale = ratio(x_norm, y_norm, root=True)
    error = ratio(summary.difference_square, y_norm, root=True)
    if error < 0.5:
        return min(1.0, 1.0 - max(0.0, (error - (scale - 1)) * (error + (scale - 1))) / (2 * scale))
    return max(-1.0, min(1.0, _normalised_product(summary)))


def _normalised_product(summary: Summary) -> float:
    y_root, x_root = _root(summary.reference_square), _root(summary.target_square)
    product = summary.product
    return float(
        Scaled.of(product.mantissa / (y_root.mantissa * x_root.mantissa), product.exponent - y_root.exponent - x_root.exponent)
    )


def _root(square: Scaled) -> Scaled:
    odd = square.exponent % 2
    return Scaled.of(math.sqrt(math.ldexp(square.mantissa, odd)), (square.exponent - odd) // 2)


def max_abs_error(summary: Summary) -> float:
    """Return the largest ``|d|``, in the tensor's own unit; for integers too."""
    return float(summary.difference_max)


def mean_abs_error(summary: Summary) -> float:
    """Return ``sum |d| / n``, in the tensor's own unit."""
    return mean(summary.difference_sum, summary.compared)


def max_rel_error(summary: Summary) -> float:
    """Return the largest ``|d| / |y|``; elements with a small reference are left out."""
    return summary.relative_max


def mean_rel_error(summary: Summary) -> float:
    """Return the mean of ``|d| / |y|``; elements with a small reference are left out."""
    return mean(summary.relative_sum, summary.ordinary)


def relative_l2(summary: Summary) -> float:
    """Return the relative Euclidean distance ``|d| / |y|``."""
    return ratio(summary.difference_square, summary.reference_square, root=True)


def accumulated_relative_error(summary: Summary) -> float:
    """Return ``sum |d| / sum |y|``."""
    return ratio(summary.difference_sum, summary.reference_sum)


def kl_divergence(summary: Summary) -> float:
    """Return ``sum p log(p / q)`` in nats, ``p = y / sum y``, ``q = x / sum x``, over the tensor as one distribution.

    Only for tensors without negative values. A target of 0 where the reference is not counts as the smallest positive
    number of the target's type.
    """
    return divergence(summary.divergence, summary.reference_sum, summary.target_sum)


def rmse(summary: Summary) -> float:
    """Return the root mean square of d, in the tensor's own unit."""
    return mean(summary.difference_square, summary.compared, root=True)


def mare(summary: Summary) -> float:
    """Return CANN's maximum relative error: the largest ``|d| / (|y| + 1e-7)``."""
    return summary.offset_relative_max


def mere(summary: Summary) -> float:
    """Return CANN's mean relative error: the mean of ``|d| / (|y| + 1e-7)``."""
    return mean(summary.offset_relative_sum, summary.compared)


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
    return mean(summary.ulp_sum, summary.ordinary)


def max_rms_error(summary: Summary) -> float:
    """Return the largest ``|d|`` over the root mean square of y."""
    reference = mean(summary.reference_square, summary.compared, root=True)
    return ratio(Scaled.of(summary.difference_max), Scaled.of(reference))


def worst_row_error(summary: Summary) -> float:
    """Return the largest ``|d_row| / max(|y_row|, median |y_row|)``; a row is the last axis, or the whole vector."""
    return summary.rows.worst()


def bitwise_equal(summary: Summary) -> float:
    """Return 1 where both sides have one type and the same bits throughout, else 0."""
    return float(summary.unequal == 0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As recipes and tables spell it.
        measure: The function; called only where ``defined``.
        defined: Whether it has a meaning for a summary.
        at_least: Larger is better, 1 is perfect; otherwise smaller is better, 0 is perfect.
        unit: ``share``, ``value`` (the tensor's own), ``ulp`` or ``nats``.
    """

    name: str
    measure: Callable[[Summary], float]
    defined: Callable[[Summary], bool]
    at_least: bool = False
    unit: str = "share"


def _any_element(summary: Summary) -> bool:
    return summary.compared > 0


def _floating(summary: Summary) -> bool:
    return summary.inexact and summary.compared > 0


def _ordinary(summary: Summary) -> bool:
    return summary.inexact and summary.ordinary > 0


def _distribution(summary: Summary) -> bool:
    return _floating(summary) and not summary.negative


def _has_rung(summary: Summary) -> bool:
    return _floating(summary) and bool(summary.close)


def _always(summary: Summary) -> bool:
    del summary
    return True


def _allclose_at(rung: str) -> Metric:
    def share(summary: Summary) -> float:
        """Return the share of compared pairs that are close by the tolerances of ``rung``."""
        return summary.close[rung] / summary.compared

    def counted(summary: Summary) -> bool:
        """Tell whether pairs were counted at this rung: not where either type is coarser."""
        return _floating(summary) and rung in summary.close

    return Metric(f"allclose_share_{rung}", share, counted, at_least=True)


_TABLE = (
    Metric("cosine_similarity", cosine_similarity, _floating, at_least=True),
    Metric("max_abs_error", max_abs_error, _any_element, unit="value"),
    Metric("mean_abs_error", mean_abs_error, _any_element, unit="value"),
    Metric("max_rel_error", max_rel_error, _ordinary),
    Metric("mean_rel_error", mean_rel_error, _ordinary),
    Metric("relative_l2", relative_l2, _floating),
    Metric("accumulated_relative_error", accumulated_relative_error, _floating),
    Metric("kl_divergence", kl_divergence, _distribution, unit="nats"),
    Metric("rmse", rmse, _floating, unit="value"),
    Metric("mare", mare, _floating),
    Metric("mere", mere, _floating),
    Metric("share_within_one_thousandth", share_within_one_thousandth, _floating, at_least=True),
    Metric("share_within_five_thousandths", share_within_five_thousandths, _floating, at_least=True),
    Metric("allclose_share", allclose_share, _has_rung, at_least=True),
    *(_allclose_at(rung) for rung in RUNGS),
    Metric("ulp_distance", ulp_distance, _ordinary, unit="ulp"),
    Metric("mean_ulp_distance", mean_ulp_distance, _ordinary, unit="ulp"),
    Metric("max_rms_error", max_rms_error, _floating),
    Metric("worst_row_error", worst_row_error, _floating),
    Metric("bitwise_equal", bitwise_equal, _always, at_least=True),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
_NOT_OF_FILLS = frozenset({"bitwise_equal", "kl_divergence"})
_ROUNDED = 2  # units in the last place by which rounding alone sets fills apart: in the tensor's own unit that is no error
_CONDITIONS = tuple(dict.fromkeys(metric.defined for metric in _TABLE))


def at_least(name: str) -> bool:
    """Say whether a limit on a metric means at least; a metric of the user's own is an error, so that it means at most."""
    return name in METRICS and METRICS[name].at_least


def measure_all(summary: Summary) -> dict[str, float]:
    """Return every metric that has a meaning for a summary, by name, in the order of the table."""
    found = _measured(summary)
    if summary.fills is None:
        return found
    fills = _measured(replace(summary.fills, rows=summary.fills.rows.filled()))
    rounded = summary.fills.ulp_max <= _ROUNDED
    for name in fills.keys() - _NOT_OF_FILLS:
        metric = METRICS[name]
        if name not in found:
            found[name] = fills[name]
        elif not (rounded and metric.unit == "value"):
            found[name] = (min if metric.at_least else max)(found[name], fills[name])
    return {name: found[name] for name in METRICS if name in found}


def _measured(summary: Summary) -> dict[str, float]:
    met = {defined: defined(summary) for defined in _CONDITIONS}  # many metrics share one
    return {metric.name: metric.measure(summary) for metric in _TABLE if met[metric.defined]}

"""Computes every metric of a :class:`Summary`, each by the pure function in its file of ``comparison/metrics/``.

y is the reference, x the target, d = x - y. Denominators are the reference's. Sums and maxima run over *compared* pairs
(neither a mask fill nor NaN nor infinite); metrics that divide by single elements leave out small references (0, subnormal).
Pairs that are fills of one constant are measured by themselves in the same way, and a metric is the worse of the two numbers:
where both are within a limit on relative L2, so is that of all elements together.
0 against 0 is no error: relative errors are 0 and the cosine is 1. An error against a reference that is 0 as a whole is
infinite. A metric that has no meaning for a pair is absent.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from precflow.comparison.fused.scaled_float import ScaledFloat, divide, divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import METRICS, Domain, Metric

_DOMAINS: Mapping[Domain, Callable[[Summary], bool]] = {
    "anything": lambda _: True,
    "numbers": lambda summary: summary.compared > 0,
    "floats": lambda summary: summary.inexact and summary.compared > 0,
    "quotients": lambda summary: summary.inexact and summary.ordinary > 0,
    "distributions": lambda summary: summary.inexact and summary.compared > 0 and not summary.negative,
    "tolerances": lambda summary: summary.inexact and summary.compared > 0 and bool(summary.close),
}
Formula = Callable[..., float]


def _find_formula(metric: Metric) -> Formula:
    compute: Formula = importlib.import_module(f"precflow.comparison.metrics.{metric.family}").compute
    return functools.partial(compute, dtype=metric.dtype) if metric.dtype else compute


_FORMULAS: tuple[tuple[str, Domain, str, Formula], ...] = tuple(
    (metric.name, metric.domain, metric.dtype, _find_formula(metric)) for metric in METRICS.values()
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

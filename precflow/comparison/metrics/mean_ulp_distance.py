"""Metric ``mean_ulp_distance``: mean difference in units in the last place of the coarser type."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "mean_ulp_distance",
    "Mean difference in units in the last place of the coarser type",
    "mean distance in units in the last place of the coarser type; where y is 0 or subnormal an element is left out",
    place=160,
    unit="ulp",
    domain="quotients",
    blind="norm",
)


def compute(summary: Summary) -> float:
    """Return the mean distance in units in the last place; elements with a small reference are left out."""
    return divide_by_count(summary.ulp_sum, summary.ordinary)

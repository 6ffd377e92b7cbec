"""Metric ``mean_rel_error``: mean of the differences over the reference's elements."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "mean_rel_error",
    "Mean of the differences over the reference's elements",
    "mean of abs d / abs y; where y is 0 or subnormal an element is left out",
    place=50,
    domain="quotients",
    example="1%",
    blind="norm",
)


def compute(summary: Summary) -> float:
    """Return the mean of ``|d| / |y|``; elements with a small reference are left out."""
    return divide_by_count(summary.relative_sum, summary.ordinary)

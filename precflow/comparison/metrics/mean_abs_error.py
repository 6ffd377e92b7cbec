"""Metric ``mean_abs_error``: mean absolute difference, in the tensor's own unit."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "mean_abs_error",
    "Mean absolute difference, in the tensor's own unit",
    "mean of abs d; for integers too",
    place=30,
    unit="value",
    domain="numbers",
    example="1e-4",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return ``sum |d| / n``, in the tensor's own unit."""
    return divide_by_count(summary.difference_sum, summary.compared)

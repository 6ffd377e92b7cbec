"""Metric ``rmse``: root mean square of the difference, in the tensor's own unit."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "rmse",
    "Root mean square of the difference, in the tensor's own unit",
    "root of the mean of d squared",
    place=90,
    unit="value",
    example="1e-4",
    source="statistics",
    estimated=True,
)


def compute(summary: Summary) -> float:
    """Return the root mean square of d, in the tensor's own unit."""
    return divide_by_count(summary.difference_square, summary.compared, root=True)

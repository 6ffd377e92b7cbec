"""Metric ``mere``: CANN's mean relative error."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "mere",
    "CANN's mean relative error",
    "mean of abs d / (abs y + 1e-7)",
    place=110,
    blind="norm",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return CANN's mean relative error: the mean of ``|d| / (|y| + 1e-7)``."""
    return divide_by_count(summary.offset_relative_sum, summary.compared)

"""Metric ``accumulated_relative_error``: sum of the absolute differences over the sum of the reference's absolute values."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "accumulated_relative_error",
    "Sum of the absolute differences over the sum of the reference's absolute values",
    "sum of abs d / sum of abs y",
    place=70,
    example="0.1%",
    blind="norm",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return ``sum |d| / sum |y|``."""
    return divide(summary.difference_sum, summary.reference_sum)

"""Metric ``worst_row_error``: norm of the worst row's difference over the norm of that row."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "worst_row_error",
    "Norm of the worst row's difference over the norm of that row",
    "largest norm of a row of d / that row of y (or the median row that is not zero, where that is larger)",
    place=180,
    example="1%",
    blind="norm",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return the largest ``|d_row| / max(|y_row|, median |y_row| > 0)``; a row is the last axis, or the whole vector."""
    return summary.rows.worst()

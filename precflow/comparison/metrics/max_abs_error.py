"""Metric ``max_abs_error``: largest absolute difference, in the tensor's own unit."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "max_abs_error",
    "Largest absolute difference, in the tensor's own unit",
    "largest abs d; for integers too",
    place=20,
    unit="value",
    domain="numbers",
    example="1e-3",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return the largest ``|d|``, in the tensor's own unit; for integers too."""
    return float(summary.difference_max)

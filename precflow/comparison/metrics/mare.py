"""Metric ``mare``: CANN's maximum relative error."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "mare",
    "CANN's maximum relative error",
    "largest abs d / (abs y + 1e-7)",
    place=100,
    blind="largest",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return CANN's maximum relative error: the largest ``|d| / (|y| + 1e-7)``."""
    return summary.offset_relative_max

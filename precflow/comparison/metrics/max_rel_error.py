"""Metric ``max_rel_error``: largest absolute difference over the reference's element."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "max_rel_error",
    "Largest absolute difference over the reference's element",
    "largest abs d / abs y; where y is 0 or subnormal an element is left out",
    place=40,
    domain="quotients",
    example="2^-10",
    blind="largest",
)


def compute(summary: Summary) -> float:
    """Return the largest ``|d| / |y|``; elements with a small reference are left out."""
    return summary.relative_max

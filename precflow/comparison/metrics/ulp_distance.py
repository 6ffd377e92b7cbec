"""Metric ``ulp_distance``: largest difference in units in the last place of the coarser type."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "ulp_distance",
    "Largest difference in units in the last place of the coarser type",
    "largest distance in units in the last place of the coarser type; where y is 0 or subnormal an element is left out",
    place=150,
    unit="ulp",
    domain="quotients",
    example="8ulp",
    blind="norm",
)


def compute(summary: Summary) -> float:
    """Return the largest distance in units in the last place, both sides rounded to the coarser of the two types."""
    return float(summary.ulp_max)

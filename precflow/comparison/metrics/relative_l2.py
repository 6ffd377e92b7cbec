"""Metric ``relative_l2``: norm of the difference over the norm of the reference."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import divide
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "relative_l2",
    "Norm of the difference over the norm of the reference",
    "norm of d / norm of y",
    place=60,
    example="2^-8",
    blind="norm",
    source="statistics",
    estimated=True,
)


def compute(summary: Summary) -> float:
    """Return the relative Euclidean distance ``|d| / |y|``."""
    return divide(summary.difference_square, summary.reference_square, root=True)

"""Metric ``bitwise_equal``: whether both tensors have the same type and bits."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "bitwise_equal",
    "Whether both tensors have the same type and bits",
    "1 where type and bits are the same, else 0",
    place=190,
    domain="anything",
    at_least=True,
    source="content ids",
)


def compute(summary: Summary) -> float:
    """Return 1 where both sides have one type and the same bits throughout, else 0."""
    return float(summary.unequal == 0)

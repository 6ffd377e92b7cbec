"""Metric ``share_within_one_thousandth``: share of elements that differ by at most 0.001 of the reference's."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "share_within_one_thousandth",
    "Share of elements that differ by at most 0.001 of the reference's",
    "share of elements with abs d / abs y of at most 0.001",
    place=120,
    at_least=True,
    example="99.9%",
)


def compute(summary: Summary) -> float:
    """Return the share of elements with ``|d| / |y| <= 0.001``; a small reference counts if the target is small too."""
    return summary.within_one_thousandth / summary.compared

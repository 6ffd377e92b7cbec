"""Metric ``share_within_five_thousandths``: share of elements that differ by at most 0.005 of the reference's."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "share_within_five_thousandths",
    "Share of elements that differ by at most 0.005 of the reference's",
    "share of elements with abs d / abs y of at most 0.005",
    place=130,
    at_least=True,
    example="99.9%",
)


def compute(summary: Summary) -> float:
    """Return the share of elements with ``|d| / |y| <= 0.005``; a small reference counts if the target is small too."""
    return summary.within_five_thousandths / summary.compared

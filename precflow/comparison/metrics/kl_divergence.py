"""Metric ``kl_divergence``: divergence of the tensors as distributions, in nats; no value is negative."""

from __future__ import annotations

from precflow.comparison.fused.kl_divergence import combine_divergence
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "kl_divergence",
    "Divergence of the tensors as distributions, in nats; no value is negative",
    "sum of p log(p / q), where p = y / sum of y and q = x / sum of x; only where no value is negative",
    place=80,
    unit="nats",
    domain="distributions",
    example="0.01",
    blind="divergence",
)


def compute(summary: Summary) -> float:
    """Return ``sum p log(p / q)`` in nats, ``p = y / sum y``, ``q = x / sum x``, over the tensor as one distribution.

    Only for tensors without negative values. A target of 0 where the reference is not counts as the smallest positive
    number of the target's type.
    """
    return combine_divergence(summary.divergence, summary.reference_sum, summary.target_sum)

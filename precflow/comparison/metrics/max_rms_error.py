"""Metric ``max_rms_error``: largest difference over the root mean square of the reference."""

from __future__ import annotations

from precflow.comparison.fused.scaled_float import ScaledFloat, divide, divide_by_count
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "max_rms_error",
    "Largest difference over the root mean square of the reference",
    "largest abs d / root mean square of y",
    place=170,
    example="1%",
    blind="largest",
    source="statistics",
)


def compute(summary: Summary) -> float:
    """Return the largest ``|d|`` over the root mean square of y."""
    reference = divide_by_count(summary.reference_square, summary.compared, root=True)
    return divide(ScaledFloat.of(summary.difference_max), ScaledFloat.of(reference))

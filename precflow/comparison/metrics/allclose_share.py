"""Metric ``allclose_share``: share of elements within the tolerances of `torch.testing.assert_close`."""

from __future__ import annotations

from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "allclose_share",
    "Share of elements within the tolerances of `torch.testing.assert_close`",
    "share of elements with abs d <= atol + rtol abs y, by the tolerances for the coarser type",
    place=140,
    domain="tolerances",
    at_least=True,
    example="100%",
    source="statistics",
    forms=("float64", "float32", "float16", "bfloat16"),
)


def compute(summary: Summary, dtype: str = "") -> float:
    """Return the share of elements with ``|d| <= atol + rtol |y|``.

    Args:
        summary: Of both tensors.
        dtype: The type whose tolerances of ``assert_close`` are taken; ``""`` for the coarser one of the two.
    """
    return (summary.close[dtype] if dtype else next(iter(summary.close.values()))) / summary.compared

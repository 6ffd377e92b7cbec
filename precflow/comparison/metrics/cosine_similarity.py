"""Metric ``cosine_similarity``: cosine of the angle between target and reference."""

from __future__ import annotations

import math

from precflow.comparison.fused.scaled_float import ScaledFloat, divide
from precflow.comparison.fused.summary import Summary
from precflow.metrics import Metric

METRIC = Metric(
    "cosine_similarity",
    "Cosine of the angle between target and reference",
    "x.y / (norm of x times norm of y); near 1 from the difference, so that nothing cancels",
    place=10,
    at_least=True,
    example="0.999",
    blind="cosine",
    source="statistics",
    estimated=True,
)


def compute(summary: Summary) -> float:
    """Return ``x.y / (|x| |y|)``, -1 to 1; 0 where only one side is 0.

    Near 1 it is taken from ``1 - cos = (|d|^2 - (|x| - |y|)^2) / (2 |x| |y|)``, which does not cancel.
    """
    y_norm, x_norm = summary.reference_square, summary.target_square
    if not y_norm.mantissa or not x_norm.mantissa:
        return 1.0 if y_norm.mantissa == x_norm.mantissa else 0.0
    scale = divide(x_norm, y_norm, root=True)
    error = divide(summary.difference_square, y_norm, root=True)
    if error < 0.5:
        return min(1.0, 1.0 - max(0.0, (error - (scale - 1)) * (error + (scale - 1))) / (2 * scale))
    # Mantissas and exponents separately: the product of two norms, or of all elements, may be beyond float64.
    y_root, x_root, product = _root(y_norm), _root(x_norm), summary.product
    mantissa = product.mantissa / (y_root.mantissa * x_root.mantissa)
    cosine = float(ScaledFloat.of(mantissa, product.exponent - y_root.exponent - x_root.exponent))
    return max(-1.0, min(1.0, cosine))


def _root(square: ScaledFloat) -> ScaledFloat:
    odd = square.exponent % 2
    return ScaledFloat.of(math.sqrt(math.ldexp(square.mantissa, odd)), (square.exponent - odd) // 2)

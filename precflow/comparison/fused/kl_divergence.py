"""Kullback-Leibler divergence of two tensors that are distributions, without the cancellation of its textbook form."""

from __future__ import annotations

import math

import numpy as np

from precflow.comparison.fused.scaled_float import ScaledFloat, divide
from precflow.comparison.fused.value_classes import Floats

SERIES = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)  # of the inverse hyperbolic tangent, behind its first term
SERIES_BELOW = 0.05  # |s| below which they are exact to 4e-16
RATIOS = (5e-324, 1e308)  # keeps the logarithm finite where a quotient leaves float64


def sum_divergence_terms(reference: Floats, target: Floats, smallest: float) -> float:
    """Return the sum of ``y log(y / x) - y + x``, each term of which is 0 or positive.

    With ``s = (x - y) / (x + y)`` the logarithm of ``x / y`` is ``2 artanh s``, and the term is
    ``s (x - y) - 2 y s^3 (1/3 + s^2/5 + ...)``: nothing cancels, however near x lies to y.

    Args:
        reference: y, all 0 or positive, below 2^400.
        target: x, the same.
        smallest: Smallest positive value of the target's type. It stands in for a target of 0 where the reference is not:
            what rounded to 0 is charged as the smallest number, not as infinitely wrong.
    """
    floored = np.where((target == 0) & (reference > 0), smallest, target)
    difference = floored - reference
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        s = difference / (floored + reference)
        square = s * s
        series = np.polynomial.polynomial.polyval(square, SERIES)
        near = s * (difference - 2 * reference * square * series)
        far = difference - reference * np.log(np.clip(floored / reference, *RATIOS))
    terms = np.where(np.abs(s) < SERIES_BELOW, near, far)
    return float(np.add.reduce(np.where(reference > 0, terms, floored)))


def combine_divergence(terms: ScaledFloat, reference_sum: ScaledFloat, target_sum: ScaledFloat) -> float:
    """Return ``sum p log(p / q)`` for ``p = y / sum y`` and ``q = x / sum x``, in nats, at least 0.

    Args:
        terms: What :func:`sum_divergence_terms` gave, added up.
        reference_sum: Sum of y.
        target_sum: Sum of x.
    """
    step = divide(target_sum, reference_sum) - 1
    if step == -1:
        return math.inf if terms.mantissa else 0.0
    excess = step - math.log1p(step) if math.isfinite(step) else math.inf
    value = divide(terms, reference_sum) - excess
    return max(value, 0.0) if not math.isnan(value) else math.inf

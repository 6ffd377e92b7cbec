"""The compiled twin of :mod:`precflow.comparison.fused.kl_divergence`."""

from __future__ import annotations

import math
from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import FAST, as_float32, float64, int32, uint64
from precflow.comparison.fused.kl_divergence import RATIOS, SERIES, SERIES_BELOW

_A, _B, _C, _D, _E = SERIES
_LEAST, _MOST = RATIOS
NEARBY = 0.001  # of |d| / y: up to here four terms of the series leave out less than 4e-13


@register_jitable
def nearby_terms(second: Any, third: Any, fourth: Any, fifth: Any) -> Any:
    """Return what :func:`divergence_terms` does for positive values, where ``|d| / y`` is at most ``NEARBY``.

    With ``q = d / y`` a term is ``y (q - log(1 + q)) = y (q^2 / 2 - q^3 / 3 + q^4 / 4 - ...)``; what is left out is less than
    4e-13 of it. Each argument is the sum of y times that power of q.
    """
    return second / 2 - third / 3 + fourth / 4 - fifth / 5


@register_jitable(fastmath=FAST)
def divergence_terms(reference: Any, target: Any, smallest: Any) -> Any:
    """Return the sum of ``y log(y / x) - y + x`` over elements without negative values, and that of x; see the twin for x of 0.

    Both sides are float32's bits.

    Terms of nearby values come from a series in one vectorised loop; only where others exist does a second loop take their
    logarithms.
    """
    total = x_sum = 0.0
    distant = int32(0)
    for i in range(uint64(reference.size)):
        y, x = float64(as_float32(reference[i])), float64(as_float32(target[i]))
        x_sum += x
        x = smallest if (x == 0.0) & (y > 0.0) else x
        d = x - y
        both = x + y
        s = d / (both if both > 0.0 else 1.0)
        near = abs(s) < SERIES_BELOW
        square = s * s
        series = _A + square * (_B + square * (_C + square * (_D + square * _E)))
        total += s * (d - 2.0 * y * square * series) if near else 0.0
        distant = int32(distant + int32(not near))
    return (total + _distant(reference, target, smallest) if distant else total), x_sum


@register_jitable(fastmath=FAST)
def _distant(reference: Any, target: Any, smallest: Any) -> Any:
    total = 0.0
    for i in range(uint64(reference.size)):
        y, x = float64(as_float32(reference[i])), float64(as_float32(target[i]))
        if y == 0.0:
            total += x
            continue
        x = smallest if x == 0.0 else x
        d = x - y
        if abs(d / (x + y)) >= SERIES_BELOW:
            total += d - y * math.log(min(max(x / y, _LEAST), _MOST))
    return total

"""The compiled twin of ``values.classify``: fills, infinities and NaN of a segment are counted, and set to 0 on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from precflow.comparison.compiled.bits import exact, uint64
from precflow.comparison.compiled.layout import FIRST_CLASS
from precflow.comparison.values import HIGH_FILL, INFINITY, LOW_FILL, MINUS_INFINITY, NOT_A_NUMBER, ORDINARY

_BAND = 0.02


@register_jitable
def _class_of(value: Any, fills: Any, side: Any) -> Any:
    if np.isnan(value):
        return NOT_A_NUMBER
    if np.isinf(value):
        return INFINITY if value > 0 else MINUS_INFINITY
    if value <= fills[side, 1] or fills[side, 2] <= value <= fills[side, 3]:
        return LOW_FILL
    return HIGH_FILL if value >= fills[side, 0] else ORDINARY


@register_jitable
def _count(left: Any, right: Any, close: Any, same: Any, counts: Any) -> None:
    """Count one excluded pair."""
    masked_alike = (left == LOW_FILL and right == MINUS_INFINITY) or (left == MINUS_INFINITY and right == LOW_FILL)
    if NOT_A_NUMBER <= left <= MINUS_INFINITY or NOT_A_NUMBER <= right <= MINUS_INFINITY:
        counts[FIRST_CLASS + 1] += 1
        counts[FIRST_CLASS + 3] += left != right and not masked_alike
    else:
        counts[FIRST_CLASS] += 1
        counts[FIRST_CLASS + 2] += left != right or (same and left == HIGH_FILL and not close)
    counts[FIRST_CLASS + 4] += masked_alike


@register_jitable(fastmath=False)
def sort_out(reference: Any, target: Any, fills: Any, plain_y: Any, plain_x: Any, counts: Any) -> Any:
    """Copy a segment with its excluded pairs set to 0, count those by class, and return how many there are.

    Args:
        reference: Bit patterns of y.
        target: Bit patterns of x.
        fills: For each side high, low, and the two ends of the band.
        plain_y: Room for a copy of y.
        plain_x: Room for a copy of x.
        counts: Int64, added to from ``FIRST_CLASS`` on.
    """
    excluded = 0
    for i in range(uint64(reference.size)):
        here, there = reference[i], target[i]
        y, x = exact(here), exact(there)
        left, right = _class_of(y, fills, 0), _class_of(x, fills, 1)
        largest = max(abs(y), abs(x))
        close = np.isfinite(y) and np.isfinite(x) and abs(y - x) <= _BAND * largest
        if (left == ORDINARY) != (right == ORDINARY) and close:
            left = right = ORDINARY
        kept = left == ORDINARY and right == ORDINARY
        plain_y[i] = here if kept else 0
        plain_x[i] = there if kept else 0
        if not kept:
            excluded += 1
            _count(left, right, close, reference.dtype == target.dtype, counts)
    return excluded

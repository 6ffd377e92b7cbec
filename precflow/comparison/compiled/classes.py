"""The compiled twin of ``values.classify``: the pairs of a segment are sorted, counted, and those apart set to 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from precflow.comparison.compiled.bits import exact, uint64
from precflow.comparison.compiled.layout import FIRST_CLASS, MEASURED
from precflow.comparison.values import CLOSE, FIRST_FILL, INFINITY, MINUS_INFINITY, NOT_A_NUMBER, ORDINARY

KEPT, APART, FILL = 0, 1, 2  # what is done with a pair: summed up, left out, summed up among the fills
LOW_END, HIGH_END, SATURATED, SLACK, PLAIN = range(5)  # numbers of a type


@register_jitable
def _class_of(value: Any, side: Any, fills: Any, extent: Any) -> Any:
    """Return the class of a value, and keep what tells whether constants are far from everything else."""
    bands, types, floors = fills
    if abs(value) < types[side, PLAIN]:
        extent[side] = max(extent[side], abs(value))
        return ORDINARY
    if np.isnan(value):
        return NOT_A_NUMBER
    if np.isinf(value):
        return INFINITY if value > 0 else MINUS_INFINITY
    for band in range(bands.shape[2]):
        if bands[side, 0, band] <= value <= bands[side, 1, band]:
            if bands[side, 2, band] < floors[side]:
                return ORDINARY
            extent[2 + side] = min(extent[2 + side], bands[side, 2, band])
            return int(bands[side, 3, band])
    extent[side] = max(extent[side], abs(value))
    return ORDINARY


@register_jitable
def _is_low(kind: Any, value: Any) -> Any:
    return kind >= FIRST_FILL and value < 0


@register_jitable
def _one_saturated(y: Any, x: Any, types: Any) -> Any:
    here, there = abs(y) == types[0, SATURATED], abs(x) == types[1, SATURATED]
    return here != there and abs(y - x) > (types[0, SLACK] if here else types[1, SLACK])


@register_jitable
def _sorted(y: Any, x: Any, fills: Any, counts: Any, extent: Any) -> Any:
    """Count one pair, and return what is done with it."""
    types = fills[1]
    left, right = _class_of(y, 0, fills, extent), _class_of(x, 1, fills, extent)
    if NOT_A_NUMBER <= left <= MINUS_INFINITY or NOT_A_NUMBER <= right <= MINUS_INFINITY:
        alike = (_is_low(left, y) and right == MINUS_INFINITY) or (left == MINUS_INFINITY and _is_low(right, x))
        counts[FIRST_CLASS + 1] += 1
        counts[FIRST_CLASS + 3] += left != right and not alike
        counts[FIRST_CLASS + 4] += alike
        return APART
    if left >= FIRST_FILL and right >= FIRST_FILL:
        counts[FIRST_CLASS] += 1
        if left == right:
            counts[MEASURED] += 1
            return FILL
        low = left == types[0, LOW_END] and right == types[1, LOW_END]
        counts[FIRST_CLASS + 5] += not (low or (left == types[0, HIGH_END] and right == types[1, HIGH_END]))
        return APART
    counts[FIRST_CLASS + 2] += left != right and not abs(y - x) <= CLOSE * max(abs(y), abs(x))
    counts[FIRST_CLASS + 6] += _one_saturated(y, x, types)
    return KEPT


@register_jitable(fastmath=False)
def sort_out(reference: Any, target: Any, fills: Any, kinds: Any, counts: Any, extent: Any) -> Any:
    """Sort the pairs of a segment, count them by class, and return how many are not kept, are fills, and are unlike ones.

    Args:
        reference: Bit patterns of y.
        target: Bit patterns of x.
        fills: For each side the low ends, high ends, sizes and classes of bands; the numbers of its type; floors.
        kinds: Room for what is done with each pair.
        counts: Int64, added to from ``FIRST_CLASS`` on.
        extent: ``EXTENT`` numbers, which are kept up to date.
    """
    apart = filled = unlike = 0
    for i in range(uint64(reference.size)):
        y, x = exact(reference[i]), exact(target[i])
        kinds[i] = _sorted(y, x, fills, counts, extent)
        apart += kinds[i] != KEPT
        filled += kinds[i] == FILL
        unlike += kinds[i] == FILL and y != x
    return apart, filled, unlike


@register_jitable
def copy_of(values: Any, kinds: Any, wanted: Any, room: Any) -> None:
    """Copy a segment with 0 in place of the pairs that are not wanted."""
    for i in range(uint64(values.size)):
        room[i] = values[i] if kinds[i] == wanted else 0

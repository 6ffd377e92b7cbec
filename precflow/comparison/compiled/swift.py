"""The sums over a block, for blocks in which every value is ordinary and no y small.

Maxima of non-negative floats are taken on their bits: a maximum of floats minds NaN, and is not vectorised.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import FAST, as_float32, as_float64, bits_of_float64, float64, int64, uint64
from precflow.comparison.compiled.layout import FIRST_RUNG, LONG_ROW, NEGATIVE, OFFSET, SEGMENT
from precflow.comparison.compiled.passes import add_close, add_within, exact_quotients

NEARLY = 1.0 - 1e-9  # far more than the estimates of quotients are off
_THOUSANDTH = 0.001 * NEARLY


@register_jitable
def segment_end(begin: Any, size: Any, first: Any, length: Any) -> Any:
    """Return where the segment of a block ends that starts at ``begin``; a long row has segments of its own."""
    end = min(begin + SEGMENT, size)
    return min(end, ((first + begin) // length + 1) * length - first) if length >= LONG_ROW else end


@register_jitable(fastmath=FAST)
def add_swiftly(
    y: Any, x: Any, first: Any, length: Any, normal: Any, rungs: Any, totals: Any, largest: Any, tallies: Any, squares: Any
) -> Any:
    """Measure a block, segment by segment, and return the sum of |y| and an estimate of the largest |d| / |y|.

    The division is shared: ``d / (|y| (|y| + 1e-7))`` gives both quotients to a few units in the last place.

    Args:
        y: Bits of the reference as float32: a block.
        x: The same of the target.
        first: Number of the first element, from the first one of row 0 of the results.
        length: Of a row.
        normal: Smallest normal value of the reference's type, as float32's bits.
        rungs: Three of (relative, absolute).
        totals: All but the sum of distances, and what belongs to the divergence, are added to.
        largest: Raised.
        tallies: Those of elements within limits are added to.
        squares: Of d and of y for each row; added to where rows are long.
    """
    begin, y_total, quotient_bound = 0, 0.0, 0.0
    while begin < y.size:
        end = segment_end(begin, y.size, first, length)
        d_sum = d_square = y_sum = y_square = x_square = product = quotient_sum = offset_sum = 0.0
        d_largest = quotient_largest = int64(0)
        for i in range(uint64(begin), uint64(end)):
            y_value, x_value = float64(as_float32(y[i])), float64(as_float32(x[i]))
            d, y_abs = abs(x_value - y_value), abs(y_value)
            d_sum, y_sum, product = d_sum + d, y_sum + y_abs, product + x_value * y_value
            d_square, y_square, x_square = d_square + d * d, y_square + y_abs * y_abs, x_square + x_value * x_value
            d_largest = max(d_largest, bits_of_float64(d))
            shifted = y_abs + OFFSET
            shared = d / (y_abs * shifted)
            quotient = shared * shifted
            offset_sum, quotient_sum = offset_sum + shared * y_abs, quotient_sum + quotient
            quotient_largest = max(quotient_largest, bits_of_float64(quotient))
        totals[0] += d_sum
        totals[1] += d_square
        totals[2] += y_sum
        totals[3] += y_square
        totals[4] += x_square
        totals[5] += product
        totals[6] += quotient_sum
        totals[7] += offset_sum
        y_total += y_sum
        if length >= LONG_ROW:
            squares[0, (first + begin) // length] += d_square
            squares[1, (first + begin) // length] += y_square
        _make_sure(y, x, begin, end, as_float64(d_largest), as_float64(quotient_largest), normal, rungs, largest, tallies)
        quotient_bound = max(quotient_bound, as_float64(quotient_largest))
        begin = end
    return y_total, quotient_bound


@register_jitable(inline="always")
def _make_sure(
    y: Any, x: Any, begin: Any, end: Any, d: Any, quotient: Any, normal: Any, rungs: Any, largest: Any, tallies: Any
) -> None:
    """Take maxima of a segment exactly, and count what is within limits, where d and the quotient do not tell it already."""
    offset = min(quotient, d / OFFSET)
    largest[0] = max(largest[0], d)
    if quotient > largest[1] * NEARLY or offset > largest[2] * NEARLY:
        exact, exact_offset = exact_quotients(y, x, begin, end, normal)
        largest[1], largest[2] = max(largest[1], exact), max(largest[2], exact_offset)
    if quotient > _THOUSANDTH:
        add_within(y, x, begin, end, tallies)
    else:
        tallies[2] += end - begin
        tallies[3] += end - begin
    if d > rungs[0, 1] and offset > rungs[0, 0] * NEARLY:
        add_close(y, x, begin, end, rungs, tallies)
    else:
        for k in range(FIRST_RUNG, NEGATIVE):
            tallies[k] += end - begin

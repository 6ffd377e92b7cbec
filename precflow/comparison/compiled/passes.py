"""Further passes over a block, each made only where the first one says that it is needed."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import (
    MAGNITUDE,
    as_float32,
    as_float64,
    bits_of_float64,
    decode,
    float64,
    int32,
    int64,
    order,
    ranked,
    uint32,
    uint64,
)
from precflow.comparison.compiled.block import FAST, OFFSET
from precflow.comparison.compiled.layout import FIRST_RUNG

_LOW_HALF, _HALF = uint32(0xFFFF), uint32(16)


@register_jitable
def extremes(reference: Any, target: Any, start: Any, stop: Any) -> Any:
    """Return the lowest and the highest order of the values of both sides, in float32's bits."""
    low, high = MAGNITUDE, int32(-MAGNITUDE)
    for i in range(uint64(start), uint64(stop)):
        y_order, x_order = order(decode(reference[i]), MAGNITUDE), order(decode(target[i]), MAGNITUDE)
        low, high = min(low, y_order, x_order), max(high, y_order, x_order)
    return low, high


@register_jitable
def distances(reference: Any, target: Any, start: Any, stop: Any, normal: Any) -> Any:
    """Return the sum and the largest of the distances in the last place, of any signs and types; small y are left out.

    The sum is exact: its halves fit into 32 bits for any block of less than 65536 elements.
    """
    largest = lower = upper = uint32(0)
    for i in range(uint64(start), uint64(stop)):
        y_rank, x_rank = ranked(reference[i], target[i]), ranked(target[i], reference[i])
        units = uint32(uint32(max(y_rank, x_rank)) - uint32(min(y_rank, x_rank)))
        units = uint32(0) if int32(decode(reference[i]) & MAGNITUDE) < normal else units
        largest = max(largest, units)
        lower, upper = uint32(lower + uint32(units & _LOW_HALF)), uint32(upper + uint32(units >> _HALF))
    return float64(lower) + 65536.0 * float64(upper), largest


@register_jitable(fastmath=False)
def exact_quotients(reference: Any, target: Any, start: Any, stop: Any, normal: Any) -> Any:
    """Return the largest ``|d| / |y|`` (small y left out) and the largest ``|d| / (|y| + 1e-7)``, correctly rounded."""
    quotient = offset = int64(0)
    for i in range(uint64(start), uint64(stop)):
        y_bits = decode(reference[i])
        small = int32(y_bits & MAGNITUDE) < normal
        y, x = float64(as_float32(y_bits)), float64(as_float32(decode(target[i])))
        d, y_abs = abs(x - y), abs(y)
        quotient = max(quotient, bits_of_float64((0.0 if small else d) / (1.0 if small else y_abs)))
        offset = max(offset, bits_of_float64(d / (y_abs + OFFSET)))
    return as_float64(quotient), as_float64(offset)


@register_jitable(fastmath=False)
def close(reference: Any, target: Any, start: Any, stop: Any, rungs: Any, counts: Any) -> None:
    """Add, for each of three rungs from ``FIRST_RUNG`` on, how many elements have ``|d| <= absolute + relative |y|``.

    No contraction here: a fused multiplication would round once where NumPy rounds twice.
    """
    first = second = third = int32(0)
    for i in range(uint64(start), uint64(stop)):
        y, x = float64(as_float32(decode(reference[i]))), float64(as_float32(decode(target[i])))
        d, y_abs = abs(x - y), abs(y)
        first = int32(first + int32(d <= y_abs * rungs[0, 0] + rungs[0, 1]))
        second = int32(second + int32(d <= y_abs * rungs[1, 0] + rungs[1, 1]))
        third = int32(third + int32(d <= y_abs * rungs[2, 0] + rungs[2, 1]))
    counts[FIRST_RUNG] += first
    counts[FIRST_RUNG + 1] += second
    counts[FIRST_RUNG + 2] += third


@register_jitable(fastmath=FAST)
def add_row_squares(reference: Any, target: Any, start: Any, stop: Any, first: Any, length: Any, squares: Any) -> None:
    """Add the squares of d and of y of each row; ``first`` is the number of the first element, ``length`` that of a row."""
    row = first // length
    end = min(stop, start + (row + 1) * length - first)
    while start < stop:
        d_square = y_square = 0.0
        for i in range(uint64(start), uint64(end)):
            y, x = float64(as_float32(decode(reference[i]))), float64(as_float32(decode(target[i])))
            d_square += (x - y) * (x - y)
            y_square += y * y
        squares[0, row] += d_square
        squares[1, row] += y_square
        row += 1
        start, end = end, min(stop, end + length)

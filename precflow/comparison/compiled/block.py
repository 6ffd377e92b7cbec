"""The innermost loops: a few thousand elements, small enough to stay in the first cache, in one pass and few more where needed.

Loops are written so that LLVM turns them into vector code: no branches, integers of 32 bits, maxima of non-negative floats
taken on their bits (a maximum of floats minds NaN, and is not vectorised), no flag that assumes NaN or infinities away.
"""

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
)

FAST = {"reassoc", "contract", "nsz"}  # of sums alone: their rounding may differ, no comparison's outcome may
SUMS = 10  # |d|, d^2, |y|, y^2, |x|, x^2, x y, |d|/|y|, |d|/(|y| + 1e-7), units in the last place
LARGEST = 3  # |d|, |d|/|y|, |d|/(|y| + 1e-7)
COUNTS = 6  # unequal, small, small_mismatch, within 0.001, within 0.005, largest distance in the last place
_OFFSET = 1e-7


@register_jitable(fastmath=FAST)
def fused(reference: Any, target: Any, normal: Any, measured: Any) -> Any:
    """Measure one block and return the lowest and the highest order of its values, in float32's bits.

    The division is shared: ``r = d / (|y| (|y| + 1e-7))`` gives both quotients to a few units in the last place, so that
    ``largest[1:]`` are estimates. Small elements are within, here, where d is 0 or the target small too.

    Args:
        reference: Bit patterns of y.
        target: Bit patterns of x.
        normal: Smallest normal value of the reference's type, as float32's bits.
        measured: ``SUMS`` sums, ``LARGEST`` maxima and ``COUNTS`` counts, in three arrays, overwritten.
    """
    d_sum = d_square = y_sum = y_square = x_sum = x_square = product = quotient_sum = offset_sum = units_sum = 0.0
    d_largest = quotient_largest = offset_largest = int64(0)
    units_largest = uint32(0)
    low, high = MAGNITUDE, int32(-MAGNITUDE)
    unequal = smalls = mismatches = thousandth = five_thousandths = int32(0)
    for i in range(reference.size):
        y_bits, x_bits = decode(reference[i]), decode(target[i])
        unequal = int32(unequal + int32(y_bits != x_bits))
        y_order, x_order = order(y_bits, MAGNITUDE), order(x_bits, MAGNITUDE)
        low, high = min(low, y_order, x_order), max(high, y_order, x_order)
        small, x_small = int32(y_bits & MAGNITUDE) < normal, int32(x_bits & MAGNITUDE) < normal
        mismatch = small & (not x_small)
        smalls, mismatches = int32(smalls + int32(small)), int32(mismatches + int32(mismatch))
        y_rank, x_rank = ranked(reference[i], target[i]), ranked(target[i], reference[i])
        units = uint32(uint32(max(y_rank, x_rank)) - uint32(min(y_rank, x_rank)))
        units = uint32(0) if small else units
        units_largest = max(units_largest, units)
        units_sum += float64(units)
        y, x = float64(as_float32(y_bits)), float64(as_float32(x_bits))
        d = abs(x - y)
        y_abs = abs(y)
        d_sum, y_sum, x_sum = d_sum + d, y_sum + y_abs, x_sum + abs(x)
        d_square, y_square, x_square, product = d_square + d * d, y_square + y * y, x_square + x * x, product + x * y
        d_largest = max(d_largest, bits_of_float64(d))
        shifted = y_abs + _OFFSET
        divisor = 1.0 if small else y_abs
        shared = d / (divisor * shifted)
        offset = shared * divisor
        quotient = 0.0 if small else shared * shifted
        offset_sum, quotient_sum = offset_sum + offset, quotient_sum + quotient
        offset_largest = max(offset_largest, bits_of_float64(offset))
        quotient_largest = max(quotient_largest, bits_of_float64(quotient))
        within = 0.0 if small else d
        thousandth = int32(thousandth + int32(within * 1000.0 <= y_abs))
        five_thousandths = int32(five_thousandths + int32(within * 200.0 <= y_abs))
    sums, largest, counts = measured
    sums[:] = (d_sum, d_square, y_sum, y_square, x_sum, x_square, product, quotient_sum, offset_sum, units_sum)
    largest[:] = (as_float64(d_largest), as_float64(quotient_largest), as_float64(offset_largest))
    counts[0], counts[1], counts[2] = unequal, smalls, mismatches
    counts[3], counts[4], counts[5] = thousandth - mismatches, five_thousandths - mismatches, units_largest
    return low, high


@register_jitable(fastmath=False)
def exact_quotients(reference: Any, target: Any, normal: Any) -> Any:
    """Return the largest ``|d| / |y|`` (small y left out) and the largest ``|d| / (|y| + 1e-7)``, correctly rounded."""
    quotient = offset = int64(0)
    for i in range(reference.size):
        y_bits = decode(reference[i])
        small = int32(y_bits & MAGNITUDE) < normal
        y, x = float64(as_float32(y_bits)), float64(as_float32(decode(target[i])))
        d, y_abs = abs(x - y), abs(y)
        quotient = max(quotient, bits_of_float64((0.0 if small else d) / (1.0 if small else y_abs)))
        offset = max(offset, bits_of_float64(d / (y_abs + _OFFSET)))
    return as_float64(quotient), as_float64(offset)


@register_jitable(fastmath=False)
def close(reference: Any, target: Any, rungs: Any, counts: Any) -> None:
    """Add, for each of three rungs, how many elements have ``|d| <= absolute + relative |y|``.

    No contraction here: a fused multiplication would round once where NumPy rounds twice.
    """
    first = second = third = int32(0)
    for i in range(reference.size):
        y, x = float64(as_float32(decode(reference[i]))), float64(as_float32(decode(target[i])))
        d, y_abs = abs(x - y), abs(y)
        first = int32(first + int32(d <= y_abs * rungs[0, 0] + rungs[0, 1]))
        second = int32(second + int32(d <= y_abs * rungs[1, 0] + rungs[1, 1]))
        third = int32(third + int32(d <= y_abs * rungs[2, 0] + rungs[2, 1]))
    counts[0] += first
    counts[1] += second
    counts[2] += third


@register_jitable(fastmath=FAST)
def add_row_squares(reference: Any, target: Any, place: Any, squares: Any) -> None:
    """Add the squares of d and of y of each row; ``place`` is the number of the first element, and the length of a row."""
    first, length = place
    row = first // length
    start = 0
    while start < reference.size:
        stop = min(reference.size, (row + 1) * length - first)
        d_square = y_square = 0.0
        for i in range(start, stop):
            y, x = float64(as_float32(decode(reference[i]))), float64(as_float32(decode(target[i])))
            d_square += (x - y) * (x - y)
            y_square += y * y
        squares[0, row] += d_square
        squares[1, row] += y_square
        row += 1
        start = stop

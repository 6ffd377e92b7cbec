"""The innermost loops, over a few thousand elements that stay in the first cache: a swift one, and one that minds all.

Loops are written so that LLVM turns them into vector code: no branches, integers of 32 bits, maxima of non-negative floats
taken on their bits (a maximum of floats minds NaN, and is not vectorised), no flag that assumes NaN or infinities away.
Places are unsigned: of a signed one numba minds that it may count from the end. Blocks are places in whole arrays.
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
    uint32,
    uint64,
    unranked,
)

FAST = {"reassoc", "contract", "nsz"}  # of sums alone: their rounding may differ, no comparison's outcome may
OFFSET = 1e-7
_THOUSANDTH, _FIVE = 0.001 * (1 + 1e-15), 0.005 * (1 + 1e-15)  # an estimated quotient is off by up to 4e-16


@register_jitable(fastmath=FAST)
def swift(reference: Any, target: Any, start: Any, stop: Any, sums: Any, peaks: Any, counts: Any) -> Any:
    """Measure one block as if every value were ordinary, no y small, and no pair of opposite signs.

    It costs half of what minding all of that costs, and tells whether it was right to do so; sums and maxima of differences
    and values are right in any case where all values are ordinary. The division is shared: ``r = d / (|y| (|y| + 1e-7))``
    gives both quotients to a few units in the last place.

    Args:
        reference: Bit patterns of y.
        target: Bit patterns of x.
        start: First element of the block.
        stop: Behind the last one.
        sums: ``SUMS``, overwritten.
        peaks: ``LARGEST`` maxima, overwritten: of |d|, an estimate of that of |d| / |y|, and a bound above the third.
        counts: ``COUNTS``, overwritten.

    Returns:
        All differing bits of any pair, all bits that are set in any value, the largest magnitude of y, and the smallest, in
        float32's bits; so the sign bits tell of opposite signs, and of negative values.
    """
    d_sum = d_square = y_sum = y_square = x_square = product = quotient_sum = offset_sum = 0.0
    d_largest = quotient_largest = int64(0)
    units_largest = units_sum = uint32(0)
    differing = present = top = int32(0)
    least = MAGNITUDE
    thousandth = five_thousandths = int32(0)
    for i in range(uint64(start), uint64(stop)):
        y_bits, x_bits = decode(reference[i]), decode(target[i])
        differing = int32(differing | int32(y_bits ^ x_bits))
        present = int32(present | int32(y_bits | x_bits))
        magnitude = int32(y_bits & MAGNITUDE)
        top, least = max(top, magnitude), min(least, magnitude)
        units = uint32(abs(int32(unranked(reference[i]) - unranked(target[i]))))
        units_largest, units_sum = max(units_largest, units), uint32(units_sum + units)
        y, x = float64(as_float32(y_bits)), float64(as_float32(x_bits))
        d = abs(x - y)
        y_abs = abs(y)
        d_sum, y_sum = d_sum + d, y_sum + y_abs
        d_square, y_square, x_square, product = d_square + d * d, y_square + y * y, x_square + x * x, product + x * y
        d_largest = max(d_largest, bits_of_float64(d))
        shifted = y_abs + OFFSET
        shared = d / (y_abs * shifted)
        quotient = shared * shifted
        offset_sum, quotient_sum = offset_sum + shared * y_abs, quotient_sum + quotient
        quotient_largest = max(quotient_largest, bits_of_float64(quotient))
        thousandth = int32(thousandth + int32(quotient <= _THOUSANDTH))
        five_thousandths = int32(five_thousandths + int32(quotient <= _FIVE))
    sums[0], sums[1], sums[2], sums[3], sums[4] = d_sum, d_square, y_sum, y_square, x_square
    sums[5], sums[6], sums[7], sums[8] = product, quotient_sum, offset_sum, float64(units_sum)
    peaks[0], peaks[1] = as_float64(d_largest), as_float64(quotient_largest)
    peaks[2] = min(peaks[1], peaks[0] / OFFSET)
    counts[0], counts[1], counts[2], counts[3], counts[4] = 0, 0, thousandth, five_thousandths, units_largest
    return differing, present, top, least


@register_jitable(fastmath=FAST)
def careful(reference: Any, target: Any, start: Any, stop: Any, normal: Any, sums: Any, peaks: Any, counts: Any) -> None:
    """Measure one block in which y may be small; distances in the last place are left to :func:`passes.distances`.

    Small elements are within, here, where d is 0 or the target small too.

    Args:
        reference: Bit patterns of y, all ordinary.
        target: Bit patterns of x, all ordinary.
        start: First element of the block.
        stop: Behind the last one.
        normal: Smallest normal value of the reference's type, as float32's bits.
        sums: As for :func:`swift`.
        peaks: The same.
        counts: The same.
    """
    d_sum = d_square = y_sum = y_square = x_square = product = quotient_sum = offset_sum = 0.0
    d_largest = quotient_largest = int64(0)
    smalls = mismatches = thousandth = five_thousandths = int32(0)
    for i in range(uint64(start), uint64(stop)):
        y_bits, x_bits = decode(reference[i]), decode(target[i])
        small, x_small = int32(y_bits & MAGNITUDE) < normal, int32(x_bits & MAGNITUDE) < normal
        smalls, mismatches = int32(smalls + int32(small)), int32(mismatches + int32(small & (not x_small)))
        y, x = float64(as_float32(y_bits)), float64(as_float32(x_bits))
        d = abs(x - y)
        y_abs = abs(y)
        d_sum, y_sum = d_sum + d, y_sum + y_abs
        d_square, y_square, x_square, product = d_square + d * d, y_square + y * y, x_square + x * x, product + x * y
        d_largest = max(d_largest, bits_of_float64(d))
        shifted = y_abs + OFFSET
        divisor = 1.0 if small else y_abs
        shared = d / (divisor * shifted)
        quotient = 0.0 if small else shared * shifted
        offset_sum, quotient_sum = offset_sum + shared * divisor, quotient_sum + quotient
        quotient_largest = max(quotient_largest, bits_of_float64(quotient))
        thousandth = int32(thousandth + int32(quotient <= _THOUSANDTH))
        five_thousandths = int32(five_thousandths + int32(quotient <= _FIVE))
    sums[0], sums[1], sums[2], sums[3], sums[4] = d_sum, d_square, y_sum, y_square, x_square
    sums[5], sums[6], sums[7], sums[8] = product, quotient_sum, offset_sum, 0.0
    peaks[0], peaks[1], peaks[2] = as_float64(d_largest), as_float64(quotient_largest), as_float64(d_largest) / OFFSET
    counts[0], counts[1], counts[4] = smalls, mismatches, 0
    counts[2], counts[3] = thousandth - mismatches, five_thousandths - mismatches

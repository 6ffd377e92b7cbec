"""The loop that measures most segments: those in which every value is ordinary and no y is small.

Whether a segment is of this kind shows after the loop. A check before it would be a second pass over memory, and the loop
computes what the check needs on the side. Other segments go to ``general_path.py``.

The loop is written so that LLVM turns it into vector code: no branches, integers of 32 bits, maxima of non-negative floats
taken on their bits (a maximum of floats has to respect NaN, and is not vectorised), no flag that assumes NaN or infinities
away. Indices are unsigned: for signed ones numba adds code, because they may count from the end.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import (
    FAST,
    MAGNITUDE,
    as_float32,
    as_float64,
    bits_of_float64,
    comparable,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
    unranked,
)
from precflow.comparison.compiled.kl_terms import NEARBY, divergence_terms, nearby_terms
from precflow.comparison.compiled.layout import (
    COUNTS,
    DIVERGENCE,
    FIRST_RUNG,
    LONG_ROW,
    NEGATIVE,
    OFFSET,
    SEGMENT,
    SUMS,
    TARGET_SUM,
    UNEQUAL,
)
from precflow.comparison.compiled.segment_sums import (
    add_close,
    add_row_squares,
    add_within,
    distances,
    exact_quotients,
    extremes,
)

NEARLY = 1.0 - 1e-9  # far more than the estimates of quotients are off
_THOUSANDTH = 0.001 * NEARLY
_SUMMED = 1 << 20  # the sum of a segment of smaller distances fits into 32 bits
_ONE, _OFFSET = float32(1.0), float32(OFFSET)
_TINY = int32(67 << 23)  # 2^-60, as float32's bits: float32 holds the inverse of what is larger, and all digits of a thousandth


@register_jitable
def segment_end(begin: Any, size: Any, first: Any, length: Any) -> Any:
    """Return where the segment ends that starts at ``begin``; a long row has segments of its own.

    Args:
        begin: First element.
        size: Behind the last one of all.
        first: Number of element 0, from the first one of row 0 on.
        length: Of a row.
    """
    end = min(begin + SEGMENT, size)
    if length >= LONG_ROW:
        end = min(end, ((first + begin) // length + 1) * length - first)
    return end


@register_jitable(fastmath=FAST, forceinline=True)
def measure_segment(y: Any, x: Any, reference: Any, target: Any, distribution: Any) -> Any:
    """Measure a segment; a division of float64 would take as long as all else.

    Both quotients come from one inverse, of ``|y| (|y| + 1e-7)``: float32's, which has a relative error of at most 2^-22, and
    after one step of Newton's that error squared.

    Args:
        y: Bits of the reference as float32.
        x: The same of the target.
        reference: Bit patterns of their own type.
        target: The same.
        distribution: Take what belongs to the divergence too; a constant, so that the loop does not have it else.

    Returns:
        Sums of |d|, d^2, |y|, y^2, x^2, x y and both quotients; the largest |d| and ``|d| / |y|``; all differing bits of any
        element, all bits set in any, the largest magnitude of y and of x, and the smallest of y, in float32's bits; the largest
        distance in the last place, where both sides have one type and sign, and the sum of them, modulo 2^32; the sums of the
        divergence's terms, where all are near, and of x. Numbers mean nothing where a value is not finite, or a y is 0.
    """
    d_sum = d_square = y_sum = y_square = x_square = product = quotient_sum = offset_sum = 0.0
    signed_sum = second = third = fourth = fifth = 0.0
    d_largest = quotient_largest = int64(0)
    units_largest = units_sum = uint32(0)
    differing = present = top = x_top = int32(0)
    least = MAGNITUDE
    for i in range(uint64(y.size)):
        y_bits, x_bits = y[i], x[i]
        differing, present = int32(differing | int32(y_bits ^ x_bits)), int32(present | int32(y_bits | x_bits))
        magnitude = int32(y_bits & MAGNITUDE)
        top, least = max(top, magnitude), min(least, magnitude)
        x_top = max(x_top, int32(x_bits & MAGNITUDE))
        units = uint32(abs(int32(unranked(y_bits, reference, i) - unranked(x_bits, target, i))))
        units_largest, units_sum = max(units_largest, units), uint32(units_sum + units)
        y_single = as_float32(magnitude)
        x_single = as_float32(int32(x_bits ^ int32(y_bits & ~MAGNITUDE)))  # with the sign of x y
        y_abs, x_value = float64(y_single), float64(x_single)
        signed = x_value - y_abs
        d = abs(signed)
        d_sum, y_sum, product = d_sum + d, y_sum + y_abs, product + x_value * y_abs
        d_square, y_square, x_square = d_square + d * d, y_square + y_abs * y_abs, x_square + x_value * x_value
        d_largest = max(d_largest, bits_of_float64(d))
        shifted = y_abs + OFFSET
        divisor = y_abs * shifted
        estimate = float64(_ONE / (y_single * (y_single + _OFFSET)))
        shared = d * estimate
        shared += shared * (1.0 - divisor * estimate)
        quotient = shared * shifted
        offset_sum, quotient_sum = offset_sum + shared * y_abs, quotient_sum + quotient
        quotient_largest = max(quotient_largest, bits_of_float64(quotient))
        if distribution:
            square = quotient * quotient
            signed_sum, second, third = signed_sum + signed, second + d * quotient, third + signed * square
            fourth, fifth = fourth + d * (square * quotient), fifth + signed * (square * square)
    sums = d_sum, d_square, y_sum, y_square, x_square, product, quotient_sum, offset_sum
    maxima = as_float64(d_largest), as_float64(quotient_largest)
    terms = nearby_terms(second, third, fourth, fifth), y_sum + signed_sum
    return sums, maxima, (differing, present, top, x_top, least), (units_largest, units_sum), terms


@register_jitable(forceinline=True)
def add_fast(y: Any, x: Any, reference: Any, target: Any, first: Any, length: Any, facts: Any, results: Any) -> bool:
    """Add a segment to the running totals; return False, with nothing added, if the general path has to measure it.

    Args:
        y: Bits of the reference as float32, at least one element.
        x: The same of the target.
        reference: Bit patterns of their own type.
        target: The same.
        first: Number of the first element, from the first one of row 0 of the results.
        length: Of a row.
        facts: As for :func:`ranges.measure_range`.
        results: The same.
    """
    bounds, _fills, rungs = facts
    (totals, largest, tallies, squares), _filled, extent = results
    magnitude, normal, smallest = bounds
    if tallies[NEGATIVE]:
        sums, maxima, bits, distance, terms = measure_segment(y, x, reference, target, distribution=False)
    else:
        sums, maxima, bits, distance, terms = measure_segment(y, x, reference, target, distribution=True)
    (d, quotient), (differing, present, top, x_top, least), (units, units_sum) = maxima, bits, distance
    if least < max(normal, _TINY) or max(top, x_top) >= magnitude:
        return False
    extent[0], extent[1] = max(extent[0], float64(as_float32(top))), max(extent[1], float64(as_float32(x_top)))
    for k in range(SUMS - 1):
        totals[k] += sums[k]
    units_total = float64(units_sum)
    if not comparable(reference, target) or differing < 0 or units >= _SUMMED:
        units_total, units = distances(reference, target, normal)
    totals[SUMS - 1] += units_total
    tallies[COUNTS - 1] = max(tallies[COUNTS - 1], units)
    tallies[UNEQUAL] |= differing != 0
    if present < 0 and not tallies[NEGATIVE]:
        tallies[NEGATIVE] = extremes(y, x)[0] < 0  # -0 is not
    if length >= LONG_ROW:
        squares[0, first // length] += sums[1]
        squares[1, first // length] += sums[3]
    else:
        add_row_squares(y, x, first, length, squares)
    _count_exactly(y, x, d, quotient, normal, rungs, largest, tallies)
    if not tallies[NEGATIVE]:
        if quotient >= NEARBY:
            terms = divergence_terms(y, x, smallest)
        totals[DIVERGENCE] += terms[0]
        totals[TARGET_SUM] += terms[1]
    return True


@register_jitable(inline="always")
def _count_exactly(y: Any, x: Any, d: Any, quotient: Any, normal: Any, rungs: Any, largest: Any, tallies: Any) -> None:
    """Take maxima of a segment exactly, and count what is within limits, where d and the quotient do not tell it already."""
    offset = min(quotient, d / OFFSET)
    largest[0] = max(largest[0], d)
    if quotient > largest[1] * NEARLY or offset > largest[2] * NEARLY:
        exact, exact_offset = exact_quotients(y, x, normal)
        largest[1], largest[2] = max(largest[1], exact), max(largest[2], exact_offset)
    if quotient > _THOUSANDTH:
        add_within(y, x, tallies)
    else:
        tallies[2] += y.size
        tallies[3] += y.size
    if d > rungs[0, 1] and offset > rungs[0, 0] * NEARLY:
        add_close(y, x, rungs, tallies)
    else:
        for k in range(FIRST_RUNG, NEGATIVE):
            tallies[k] += y.size

"""Measures any segment: the fast path refuses those in which some value is not ordinary, or some y is small.

If all values are ordinary, the segment is summed up as it is. Otherwise each pair is classified first, as in
``fused/value_classes.py``, and the segment is summed up twice: ordinary pairs, then fills, with 0 in place of the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from precflow.comparison.compiled.bits import (
    FAST,
    MAGNITUDE,
    as_float32,
    as_float64,
    bits_of_float64,
    decoded,
    exact,
    float64,
    int32,
    int64,
    uint64,
)
from precflow.comparison.compiled.fast_path import NEARLY
from precflow.comparison.compiled.kl_terms import divergence_terms
from precflow.comparison.compiled.layout import (
    COUNTS,
    DIVERGENCE,
    FIRST_CLASS,
    FIRST_RUNG,
    LONG_ROW,
    MEASURED,
    NEGATIVE,
    OFFSET,
    SUMS,
    TARGET_SUM,
    UNEQUAL,
)
from precflow.comparison.compiled.segment_sums import (
    add_close,
    add_row_squares,
    differing_bits,
    distances,
    exact_quotients,
    extremes,
    largest,
)
from precflow.comparison.fused.value_classes import CLOSE, FIRST_FILL, INFINITY, MINUS_INFINITY, NOT_A_NUMBER, ORDINARY

KEPT, APART, FILL = 0, 1, 2  # what is done with a pair: summed up, left out, summed up among the fills
LOW_END, HIGH_END, SATURATED, SLACK, PLAIN = range(5)  # columns of `types`, what is known of a type
_THOUSANDTH, _FIVE = 0.001 * (1 + 1e-15), 0.005 * (1 + 1e-15)  # an estimated quotient is off by up to 4e-16


@register_jitable
def _class_of(value: Any, side: Any, fills: Any, extent: Any) -> Any:
    """Return the class of a value, and note in ``extent`` how near ordinary values come to the constants."""
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
def _classify_pair(y: Any, x: Any, fills: Any, counts: Any, extent: Any) -> Any:
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
    here, there = abs(y) == types[0, SATURATED], abs(x) == types[1, SATURATED]
    counts[FIRST_CLASS + 6] += here != there and abs(y - x) > (types[0, SLACK] if here else types[1, SLACK])
    return KEPT


@register_jitable(fastmath=False)
def classify_segment(reference: Any, target: Any, fills: Any, kinds: Any, counts: Any, extent: Any) -> Any:
    """Classify and count the pairs of a segment; return how many are not kept, how many are fills, and how many unequal fills.

    Args:
        reference: Bit patterns of y.
        target: Bit patterns of x.
        fills: For each side the low ends, high ends, sizes and classes of bands; the numbers of its type; floors.
        kinds: Room for what is done with each pair.
        counts: Int64, added to from ``FIRST_CLASS`` on.
        extent: Kept up to date: the largest magnitude of y and of x that is near no constant, and the smallest constant that
            was taken for a fill in each.
    """
    apart = filled = unlike = 0
    for i in range(uint64(reference.size)):
        y, x = exact(reference[i]), exact(target[i])
        kinds[i] = _classify_pair(y, x, fills, counts, extent)
        apart += kinds[i] != KEPT
        filled += kinds[i] == FILL
        unlike += kinds[i] == FILL and y != x
    return apart, filled, unlike


@register_jitable
def copy_kind(values: Any, kinds: Any, wanted: Any, room: Any) -> None:
    """Copy a segment with 0 in place of the pairs that are not wanted."""
    for i in range(uint64(values.size)):
        room[i] = values[i] if kinds[i] == wanted else 0


@register_jitable
def add_general(reference: Any, target: Any, first: Any, length: Any, facts: Any, results: Any, scratch: Any) -> None:
    """Add a segment to the running totals, whatever values are in it.

    Args:
        reference: Bit patterns of y.
        target: Bit patterns of x.
        first: Number of the first element, from the first one of row 0 of the results.
        length: Of a row.
        facts: As for :func:`measure_range.measure_range`.
        results: The same.
        scratch: The same.
    """
    bounds, fills, rungs = facts
    kept, filled, extent = results
    sums, kinds, (plain_y, copy_y, room_y, wide_y), (plain_x, copy_x, room_x, wide_x) = scratch
    magnitude, normal, smallest = bounds
    size = reference.size
    differing = differing_bits(reference, target)
    kept[2][UNEQUAL] |= differing != 0
    lowest, highest = extremes(reference, target)
    if -magnitude < lowest and highest < magnitude:
        y, x = decoded(reference, room_y, wide_y)[:size], decoded(target, room_x, wide_x)[:size]
        extent[0], extent[1] = max(extent[0], largest(y)), max(extent[1], largest(x))
        _add(y, x, reference, target, first, length, normal, smallest, rungs, differing, kept, sums)
        return
    apart, fillings, unlike = classify_segment(reference, target, fills, kinds, kept[2], extent)
    for wanted, left_out, totals in ((KEPT, apart, kept), (FILL, size - fillings, filled)):
        if wanted == FILL and not fillings:
            return
        copy_kind(reference, kinds, wanted, plain_y)
        if wanted == FILL and not unlike:
            _add_equal(decoded(copy_y[:size], room_y, wide_y)[:size], fillings, first, length, totals)
            return
        copy_kind(target, kinds, wanted, plain_x)
        y, x = decoded(copy_y[:size], room_y, wide_y)[:size], decoded(copy_x[:size], room_x, wide_x)[:size]
        # What was left out is 0 on both sides here, so that it was counted as small, and as within limits.
        for k in (0, 2, 3):
            totals[2][k] -= left_out
        for k in range(FIRST_RUNG, NEGATIVE):
            totals[2][k] -= left_out
        _add(y, x, copy_y[:size], copy_x[:size], first, length, normal, smallest, rungs, differing, totals, sums)


@register_jitable(fastmath=FAST)
def _add_equal(y: Any, number: Any, first: Any, length: Any, results: Any) -> None:
    """Add fills of a segment that are the same on both sides, in which other pairs are 0, to their totals."""
    totals, _largest, tallies, squares = results
    y_sum = y_square = signed = 0.0
    for i in range(uint64(y.size)):
        value = float64(as_float32(y[i]))
        y_sum, y_square, signed = y_sum + abs(value), y_square + value * value, signed + value
    totals[2] += y_sum
    for k in (3, 4, 5):
        totals[k] += y_square
    for k in (2, 3):
        tallies[k] += number
    for k in range(FIRST_RUNG, NEGATIVE):
        tallies[k] += number
    tallies[NEGATIVE] |= signed < y_sum
    if not tallies[NEGATIVE]:
        totals[TARGET_SUM] += y_sum
    if length >= LONG_ROW:
        squares[1, first // length] += y_square
    else:
        add_row_squares(y, y, first, length, squares)


@register_jitable
def _add(
    y: Any,
    x: Any,
    reference: Any,
    target: Any,
    first: Any,
    length: Any,
    normal: Any,
    smallest: Any,
    rungs: Any,
    differing: Any,
    results: Any,
    sums: Any,
) -> None:
    """Add one population of a segment, in which other pairs are 0, to its totals."""
    totals, largest, tallies, squares = results
    units_total, units = distances(reference, target, normal)
    totals[SUMS - 1] += units_total
    tallies[COUNTS - 1] = max(tallies[COUNTS - 1], units)
    tallies[NEGATIVE] |= extremes(y, x)[0] < 0
    d, quotient = _measure(y, x, normal, sums, tallies)
    for k in range(SUMS - 1):
        totals[k] += sums[k]
    if length >= LONG_ROW:
        squares[0, first // length] += sums[1]
        squares[1, first // length] += sums[3]
    else:
        add_row_squares(y, x, first, length, squares)
    largest[0] = max(largest[0], d)
    if quotient > largest[1] * NEARLY or d / OFFSET > largest[2] * NEARLY:
        exact, offset = exact_quotients(y, x, normal)
        largest[1], largest[2] = max(largest[1], exact), max(largest[2], offset)
    add_close(y, x, rungs, tallies)
    if not tallies[NEGATIVE]:
        terms, x_sum = divergence_terms(y, x, smallest) if differing else (0.0, sums[2])
        totals[DIVERGENCE] += terms
        totals[TARGET_SUM] += x_sum


@register_jitable(fastmath=FAST)
def _measure(y: Any, x: Any, normal: Any, sums: Any, counts: Any) -> Any:
    """Measure a segment, and return the largest |d|, and an estimate of the largest |d| / |y|.

    Small elements are within, here, where d is 0 or the target small too.
    """
    d_sum = d_square = y_sum = y_square = x_square = product = quotient_sum = offset_sum = 0.0
    d_largest = quotient_largest = int64(0)
    smalls = mismatches = thousandth = five_thousandths = int32(0)
    for i in range(uint64(y.size)):
        small, x_small = int32(y[i] & MAGNITUDE) < normal, int32(x[i] & MAGNITUDE) < normal
        smalls, mismatches = int32(smalls + int32(small)), int32(mismatches + int32(small & (not x_small)))
        y_value, x_value = float64(as_float32(y[i])), float64(as_float32(x[i]))
        d, y_abs = abs(x_value - y_value), abs(y_value)
        d_sum, y_sum, product = d_sum + d, y_sum + y_abs, product + x_value * y_value
        d_square, y_square, x_square = d_square + d * d, y_square + y_abs * y_abs, x_square + x_value * x_value
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
    sums[5], sums[6], sums[7] = product, quotient_sum, offset_sum
    counts[0] += smalls
    counts[1] += mismatches
    counts[2] += thousandth - mismatches
    counts[3] += five_thousandths - mismatches
    return as_float64(d_largest), as_float64(quotient_largest)

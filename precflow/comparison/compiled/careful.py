"""The sums over a block of ordinary values in which some y may be small."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import (
    FAST,
    MAGNITUDE,
    as_float32,
    as_float64,
    bits_of_float64,
    float64,
    int32,
    int64,
    uint64,
)
from precflow.comparison.compiled.layout import LONG_ROW, OFFSET, SUMS
from precflow.comparison.compiled.passes import add_close, exact_quotients
from precflow.comparison.compiled.swift import NEARLY, segment_end

_THOUSANDTH, _FIVE = 0.001 * (1 + 1e-15), 0.005 * (1 + 1e-15)  # an estimated quotient is off by up to 4e-16


@register_jitable
def add_carefully(
    y: Any,
    x: Any,
    first: Any,
    length: Any,
    normal: Any,
    rungs: Any,
    sums: Any,
    totals: Any,
    largest: Any,
    tallies: Any,
    squares: Any,
) -> Any:
    """Do what :func:`swift.add_swiftly` does; ``sums`` is room for those of a segment.

    Small elements are within, here, where d is 0 or the target small too.
    """
    begin, y_total = 0, 0.0
    while begin < y.size:
        end = segment_end(begin, y.size, first, length)
        d, quotient = _measure(y, x, begin, end, normal, sums, tallies)
        for k in range(SUMS - 1):
            totals[k] += sums[k]
        y_total += sums[2]
        if length >= LONG_ROW:
            squares[0, (first + begin) // length] += sums[1]
            squares[1, (first + begin) // length] += sums[3]
        largest[0] = max(largest[0], d)
        if quotient > largest[1] * NEARLY or d / OFFSET > largest[2] * NEARLY:
            exact, offset = exact_quotients(y, x, begin, end, normal)
            largest[1], largest[2] = max(largest[1], exact), max(largest[2], offset)
        add_close(y, x, begin, end, rungs, tallies)
        begin = end
    return y_total


@register_jitable(fastmath=FAST)
def _measure(y: Any, x: Any, begin: Any, end: Any, normal: Any, sums: Any, counts: Any) -> Any:
    """Measure a segment, and return the largest |d|, and an estimate of the largest |d| / |y|."""
    d_sum = d_square = y_sum = y_square = x_square = product = quotient_sum = offset_sum = 0.0
    d_largest = quotient_largest = int64(0)
    smalls = mismatches = thousandth = five_thousandths = int32(0)
    for i in range(uint64(begin), uint64(end)):
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

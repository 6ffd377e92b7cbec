"""Further passes over a segment of a pair, each run only if the first pass showed that it is needed.

Arguments are the bits of float32, except in ``extremes``, ``differing_bits`` and ``distances``, which decode elements.
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
    decode,
    float32,
    float64,
    int32,
    int64,
    multiply_add,
    order,
    ranked,
    uint32,
    uint64,
)
from precflow.comparison.compiled.layout import FIRST_RUNG, OFFSET

_LOW_HALF, _HALF = uint32(0xFFFF), uint32(16)
_THOUSANDTH, _FIVE = float32(0.001), float32(0.005)
# What float32 loses of the two limits, slightly more so that a difference of exactly the limit counts as within it.
_THOUSANDTH_REST = float32(0.001 * (1 + 2.0**-36) - float64(_THOUSANDTH))
_FIVE_REST = float32(0.005 * (1 + 2.0**-36) - float64(_FIVE))
_BELOW, _ABOVE = float32(1 - 2.0**-20), float32(1 + 2.0**-20)
_ONE, _NONE = float32(1.0), float32(0.0)


@register_jitable
def extremes(reference: Any, target: Any) -> Any:
    """Return the lowest and the highest value of both sides together, as integers by ``order`` of float32's bits."""
    low, high = MAGNITUDE, int32(-MAGNITUDE)
    for i in range(uint64(reference.size)):
        y_order, x_order = order(decode(reference[i]), MAGNITUDE), order(decode(target[i]), MAGNITUDE)
        lower, higher = min(y_order, x_order), max(y_order, x_order)  # separately: LLVM does not vectorize a minimum of three
        low, high = min(low, lower), max(high, higher)
    return low, high


@register_jitable
def largest(values: Any) -> Any:
    """Return the largest magnitude of finite values, which are given as float32's bits, as float64."""
    top = int32(0)
    for i in range(uint64(values.size)):
        top = max(top, int32(values[i] & MAGNITUDE))
    return float64(as_float32(top))


@register_jitable
def differing_bits(reference: Any, target: Any) -> Any:
    """Return a mask of the bits of float32 that differ in at least one element; 0 if the segments are equal."""
    differing = int32(0)
    for i in range(uint64(reference.size)):
        differing = int32(differing | int32(decode(reference[i]) ^ decode(target[i])))
    return differing


@register_jitable
def distances(reference: Any, target: Any, normal: Any) -> Any:
    """Return the sum and the largest of the distances in units in the last place, for any signs and types.

    Elements with a small y, below ``normal``, are left out. The sum is exact: low and high halves of the distances are added up
    separately, and fit into 32 bits for any segment of less than 65536 elements.
    """
    largest = lower = upper = uint32(0)
    for i in range(uint64(reference.size)):
        y_rank, x_rank = ranked(reference[i], target[i]), ranked(target[i], reference[i])
        units = uint32(uint32(max(y_rank, x_rank)) - uint32(min(y_rank, x_rank)))
        units = uint32(0) if int32(decode(reference[i]) & MAGNITUDE) < normal else units
        largest = max(largest, units)
        lower, upper = uint32(lower + uint32(units & _LOW_HALF)), uint32(upper + uint32(units >> _HALF))
    return float64(lower) + 65536.0 * float64(upper), largest


@register_jitable(fastmath=False)
def exact_quotients(y: Any, x: Any, normal: Any) -> Any:
    """Return the largest ``|d| / |y|`` (small y left out) and the largest ``|d| / (|y| + 1e-7)``, correctly rounded float64."""
    quotient = offset = int64(0)
    for i in range(uint64(y.size)):
        small = int32(y[i] & MAGNITUDE) < normal
        y_value, x_value = float64(as_float32(y[i])), float64(as_float32(x[i]))
        d, y_abs = abs(x_value - y_value), abs(y_value)
        quotient = max(quotient, bits_of_float64((0.0 if small else d) / (1.0 if small else y_abs)))
        offset = max(offset, bits_of_float64(d / (y_abs + OFFSET)))
    return as_float64(quotient), as_float64(offset)


@register_jitable(fastmath=False)
def add_within(y: Any, x: Any, counts: Any) -> None:
    """Count elements with ``|d| / |y|`` of at most 0.001 and 0.005, and add the numbers to the third and fourth count.

    No ``|y|`` may be less than 2^-100. The comparison is made in float32, of which a vector register holds twice as many as of
    float64, and yet no rounding changes a count: ``|d|`` is exact if it is less than half of ``|y|``, and each limit has two
    parts, the smaller of which is slightly too large. That does no harm, because ``|y|`` is m units (m < 2^24) and ``|d|`` is
    j half units, so that ``1000 j / 2m`` is either exactly 1 or off by at least 1 / m.
    """
    thousandth = five = int32(0)
    for i in range(uint64(y.size)):
        y_value, x_value = as_float32(y[i]), as_float32(x[i])
        d, y_abs = abs(x_value - y_value), abs(y_value)
        room = multiply_add(y_abs, _THOUSANDTH_REST, multiply_add(y_abs, _THOUSANDTH, -d))
        thousandth = int32(thousandth + int32(room >= _NONE))
        room = multiply_add(y_abs, _FIVE_REST, multiply_add(y_abs, _FIVE, -d))
        five = int32(five + int32(room >= _NONE))
    counts[2] += thousandth
    counts[3] += five


@register_jitable(fastmath=FAST)
def add_close(y: Any, x: Any, rungs: Any, counts: Any) -> None:
    """Count, for each of three tolerances (rungs), the elements with ``|d| <= absolute + relative |y|``.

    The numbers are added to ``counts`` from ``FIRST_RUNG`` on. The comparison is made in float32, of which a vector register
    holds twice as many as of float64. Its roundings add up to less than 2^-21, so it decides every difference that is not
    within 2^-20 of a limit. If one is, the whole segment is counted again in float64.
    """
    # Counted in float32 like the values, so that all vectors have the same width; exact, because a segment is short.
    first = first_above = second = second_above = third = third_above = _NONE
    relative, absolute = float32(rungs[0, 0]), float32(rungs[0, 1])
    relative_2, absolute_2 = float32(rungs[1, 0]), float32(rungs[1, 1])
    relative_3, absolute_3 = float32(rungs[2, 0]), float32(rungs[2, 1])
    for i in range(uint64(y.size)):
        y_value, x_value = as_float32(y[i]), as_float32(x[i])
        d, y_abs = abs(x_value - y_value), abs(y_value)
        below, above = d * _BELOW, d * _ABOVE
        limit = y_abs * relative + absolute
        first += _ONE if below <= limit else _NONE
        first_above += _ONE if above <= limit else _NONE
        limit = y_abs * relative_2 + absolute_2
        second += _ONE if below <= limit else _NONE
        second_above += _ONE if above <= limit else _NONE
        limit = y_abs * relative_3 + absolute_3
        third += _ONE if below <= limit else _NONE
        third_above += _ONE if above <= limit else _NONE
    if first != first_above or second != second_above or third != third_above:  # a difference is too close to a limit
        _add_close_exactly(y, x, rungs, counts)
        return
    counts[FIRST_RUNG] += int64(first)
    counts[FIRST_RUNG + 1] += int64(second)
    counts[FIRST_RUNG + 2] += int64(third)


@register_jitable(fastmath=False)
def _add_close_exactly(y: Any, x: Any, rungs: Any, counts: Any) -> None:
    """Count as :func:`add_close` does, in float64.

    ``FAST`` is not used here: it would fuse multiplication and addition, which rounds once where NumPy rounds twice.
    """
    for i in range(uint64(y.size)):
        y_value, x_value = float64(as_float32(y[i])), float64(as_float32(x[i]))
        d, y_abs = abs(x_value - y_value), abs(y_value)
        counts[FIRST_RUNG] += d <= y_abs * rungs[0, 0] + rungs[0, 1]
        counts[FIRST_RUNG + 1] += d <= y_abs * rungs[1, 0] + rungs[1, 1]
        counts[FIRST_RUNG + 2] += d <= y_abs * rungs[2, 0] + rungs[2, 1]


@register_jitable(fastmath=FAST)
def add_row_squares(y: Any, x: Any, first: Any, length: Any, squares: Any) -> None:
    """Add up the squares of d and of y by row.

    Args:
        y: The reference, a segment.
        x: The target, the same elements.
        first: Number of the segment's first element, counted from the beginning of row 0.
        length: Number of elements of a row.
        squares: float64 ``[2, rows]``, added to: squares of d, and squares of y.
    """
    row, begin = first // length, 0
    end = min(y.size, (row + 1) * length - first)
    while begin < y.size:
        d_square = y_square = 0.0
        for i in range(uint64(begin), uint64(end)):
            y_value, x_value = float64(as_float32(y[i])), float64(as_float32(x[i]))
            d_square += (x_value - y_value) * (x_value - y_value)
            y_square += y_value * y_value
        squares[0, row] += d_square
        squares[1, row] += y_square
        row += 1
        begin, end = end, min(y.size, end + length)

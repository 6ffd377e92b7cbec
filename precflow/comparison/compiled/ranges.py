"""A range of a pair, block after block, into running totals: what a thread does without the interpreter's lock.

Nothing is allocated: room for what one block gives comes from outside, and arrays are passed singly, not as tuples that each
helper would take apart.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import comparable, decoded, float64, int32
from precflow.comparison.compiled.block import seen_in
from precflow.comparison.compiled.careful import add_carefully
from precflow.comparison.compiled.classes import sort_out
from precflow.comparison.compiled.layout import (
    BLOCK,
    COUNTS,
    DIVERGENCE,
    FIRST_RUNG,
    LONG_ROW,
    NEGATIVE,
    SEGMENT,
    SUMS,
    TARGET_SUM,
    TILE,
    UNEQUAL,
)
from precflow.comparison.compiled.passes import add_row_squares, distances, extremes, least_of
from precflow.comparison.compiled.swift import add_swiftly
from precflow.comparison.compiled.terms import NEARBY, divergence_terms, nearby_terms
from precflow.compiling import storing
from precflow.dumps.compiled.lanes import add_lanes, add_lanes_of_both

_SUMMED = 1 << 20  # distances below it, a block of them, fit into 32 bits
_TINY = int32(27 << 23)  # 2^-100, as float32's bits: float32 has all its digits for a thousandth of what is larger


@register_jitable
def _sorted_out(
    reference: Any, target: Any, start: Any, stop: Any, bounds: Any, fills: Any, plain_y: Any, plain_x: Any, tallies: Any
) -> Any:
    """Look closer at a block, copy it without the pairs that are not ordinary, and return how many those are."""
    low, high = extremes(reference, target, start, stop)
    if bounds[0] < low and high < bounds[1]:
        return 0
    return sort_out(reference, target, start, stop, fills, plain_y, plain_x, tallies)


@register_jitable
def _leave_out(excluded: Any, tallies: Any) -> None:
    """Take what was sorted out from the counts: it is 0 on both sides, so that it looks small, and within limits."""
    for k in (0, 2, 3):
        tallies[k] -= excluded
    for k in range(FIRST_RUNG, NEGATIVE):
        tallies[k] -= excluded


@register_jitable
def _add_tile_lanes(start: Any, stop: Any, width: Any, other: Any, seen: Any) -> None:
    """Add the words of a tile to the lanes of both sides; types of one width share the weights that are read."""
    words, others, weights, lanes, other_lanes = seen
    length = weights.shape[1]
    begin, end = start * width // 4, stop * width // 4
    if width == other:
        block = begin // length
        add_lanes_of_both(words, others, begin, end, weights, lanes[block], other_lanes[block])
        return
    add_lanes(words, begin, end, weights, lanes[begin // length])
    begin, end = start * other // 4, stop * other // 4
    add_lanes(others, begin, end, weights, other_lanes[begin // length])


@register_jitable
def _add_piecewise(
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
    """Measure a block in which some y is small, and mind that in those of its pieces alone that have one.

    Returns:
        The sum of |y|, and 1 for the largest quotient, which nobody knows.
    """
    y_sum = 0.0
    for begin in range(0, y.size, SEGMENT):
        end = min(begin + SEGMENT, y.size)
        piece, other = y[begin:end], x[begin:end]
        if least_of(piece) < max(normal, _TINY):
            y_sum += add_carefully(piece, other, first + begin, length, normal, rungs, sums, totals, largest, tallies, squares)
        else:
            y_sum += add_swiftly(piece, other, first + begin, length, normal, rungs, totals, largest, tallies, squares)[0]
    return y_sum, 1.0


@register_jitable(inline="always")
def _add_block(reference: Any, target: Any, start: Any, stop: Any, place: Any, facts: Any, results: Any, scratch: Any) -> None:
    """Add one block to the running totals."""
    (first, length), (bounds, fills, rungs), (totals, largest, tallies, squares) = place, facts, results
    sums, (plain_y, copy_y, room_y, wide_y), (plain_x, copy_x, room_x, wide_x) = scratch
    _low, _high, magnitude, normal, smallest = bounds
    size = stop - start
    whole_y, at_y = decoded(reference, start, stop, room_y, wide_y)
    whole_x, at_x = decoded(target, start, stop, room_x, wide_x)
    y, x = whole_y[at_y : at_y + size], whole_x[at_x : at_x + size]
    differing, present, top, least, units, units_sum = seen_in(y, x, reference, target, start)
    excluded = 0
    if top >= magnitude:
        excluded = _sorted_out(reference, target, start, stop, bounds, fills, plain_y, plain_x, tallies)
    if excluded:
        whole_y, at_y = decoded(copy_y, 0, size, room_y, wide_y)
        whole_x, at_x = decoded(copy_x, 0, size, room_x, wide_x)
        y, x = whole_y[at_y : at_y + size], whole_x[at_x : at_x + size]
        units_total, units = distances(copy_y, copy_x, 0, size, normal)
        _leave_out(excluded, tallies)
    elif comparable(reference, target) and differing >= 0 and least >= normal and units < _SUMMED:
        units_total = float64(units_sum)
    else:
        units_total, units = distances(reference, target, start, stop, normal)
    totals[SUMS - 1] += units_total
    tallies[COUNTS - 1] = max(tallies[COUNTS - 1], units)
    tallies[UNEQUAL] |= differing != 0
    if present < 0 and not tallies[NEGATIVE]:
        tallies[NEGATIVE] = extremes(y, x, 0, size)[0] < 0
    number = first + start  # of the first element
    if excluded or least < max(normal, _TINY):
        y_sum, quotient = _add_piecewise(y, x, number, length, normal, rungs, sums, totals, largest, tallies, squares)
    else:
        y_sum, quotient = add_swiftly(y, x, number, length, normal, rungs, totals, largest, tallies, squares)
    if length < LONG_ROW:
        add_row_squares(y, x, 0, size, number, length, squares)
    if not tallies[NEGATIVE]:
        terms, target_sum = 0.0, y_sum
        if differing and quotient < NEARBY:
            terms, target_sum = nearby_terms(y, x, 0, size)
        elif differing:
            terms, target_sum = divergence_terms(y, x, 0, size, smallest)
        totals[DIVERGENCE] += terms
        totals[TARGET_SUM] += target_sum


@storing
def measure_range(reference: Any, target: Any, place: Any, facts: Any, results: Any, scratch: Any, seen: Any) -> None:
    """Add a range of a pair to running totals, and its words to the lanes of content ids.

    Args:
        reference: Bit patterns of y, contiguous and read-only.
        target: Bit patterns of x.
        place: How far the first element lies from the first one of row 0 of the results, and the length of a row.
        facts: Orders at which values stop being plain, and the magnitude, and the smallest normal of the reference's type, as
            bits, and the smallest positive value of the target's; fills of both sides; three rungs (relative, absolute) from
            tight to loose.
        results: ``TOTALS`` sums; ``LARGEST`` maxima; ``TALLIES`` counts; squares of d and of y for each row.
        scratch: Sums of a segment; for each side, room for a copy of a block, the same read-only, room for a block
            as float32's bits, the same read-only.
        seen: Whole words of both sides from the same place on, which starts a block of lanes; the lanes' weights; lanes of
            both sides, none where nobody asks for them.
    """
    start = 0
    while start < reference.size:
        if seen[3].size and start % TILE == 0:
            _add_tile_lanes(start, min(start + TILE, reference.size), reference.itemsize, target.itemsize, seen)
        stop = min(start + BLOCK, reference.size)
        _add_block(reference, target, start, stop, place, facts, results, scratch)
        start = stop

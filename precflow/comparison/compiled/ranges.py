"""A range of a pair, block after block, into running totals: what a thread does without the interpreter's lock.

Nothing is allocated: room for what one block gives comes from outside, and arrays are passed singly, not as tuples that each
helper would take apart.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import as_float32, comparable, float64
from precflow.comparison.compiled.block import careful, swift
from precflow.comparison.compiled.classes import sort_out
from precflow.comparison.compiled.layout import (
    BLOCK,
    COUNTS,
    DIVERGENCE,
    FIRST_RUNG,
    NEGATIVE,
    SUMS,
    TARGET_SUM,
    TILE,
    UNEQUAL,
)
from precflow.comparison.compiled.passes import add_row_squares, close, distances, exact_quotients, extremes
from precflow.comparison.compiled.terms import divergence_terms
from precflow.compiling import storing
from precflow.dumps.compiled.lanes import add_lanes, add_lanes_of_both

_LONG_ROW = 256  # from here on a row is measured as blocks of its own
_NEARLY = 1.0 - 1e-9  # far more than the estimates of quotients are off
_SUMMED = 1 << 20  # distances below it, 4096 of them, fit into 32 bits


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
def _mind(
    reference: Any, target: Any, start: Any, stop: Any, normal: Any, excluded: Any, sums: Any, peaks: Any, counts: Any
) -> None:
    """Measure a block anew in which some y is small: all that was sorted out looks so, and counts for nothing."""
    careful(reference, target, start, stop, normal, sums, peaks, counts)
    counts[0] -= excluded
    counts[2] -= excluded
    counts[3] -= excluded
    sums[SUMS - 1], counts[COUNTS - 1] = distances(reference, target, start, stop, normal)


@register_jitable
def _add_up(
    reference: Any,
    target: Any,
    start: Any,
    stop: Any,
    normal: Any,
    rungs: Any,
    excluded: Any,
    sums: Any,
    peaks: Any,
    counts: Any,
    totals: Any,
    largest: Any,
    tallies: Any,
) -> None:
    """Add what was found in a block, and make sure of what was only estimated."""
    for k in range(SUMS):
        totals[k] += sums[k]
    for k in range(COUNTS - 1):
        tallies[k] += counts[k]
    tallies[COUNTS - 1] = max(tallies[COUNTS - 1], counts[COUNTS - 1])
    largest[0] = max(largest[0], peaks[0])
    if peaks[1] > largest[1] * _NEARLY or peaks[2] > largest[2] * _NEARLY:
        quotient, offset = exact_quotients(reference, target, start, stop, normal)
        largest[1], largest[2] = max(largest[1], quotient), max(largest[2], offset)
    near = peaks[0] <= rungs[0, 1] or peaks[2] <= rungs[0, 0] * _NEARLY
    for k in range(FIRST_RUNG, NEGATIVE):
        tallies[k] += (stop - start if near else 0) - excluded
    if not near:
        close(reference, target, start, stop, rungs, tallies)


@register_jitable
def _add_rows_and_terms(
    reference: Any,
    target: Any,
    start: Any,
    stop: Any,
    first: Any,
    length: Any,
    smallest: Any,
    differing: Any,
    sums: Any,
    totals: Any,
    tallies: Any,
    squares: Any,
) -> None:
    """Add the squares of rows, and the divergence while no value is negative."""
    if length >= _LONG_ROW:
        squares[0, first // length] += sums[1]
        squares[1, first // length] += sums[3]
    else:
        add_row_squares(reference, target, start, stop, first, length, squares)
    if tallies[NEGATIVE]:
        return
    terms, target_sum = 0.0, sums[2]
    if differing:
        terms, target_sum = divergence_terms(reference, target, start, stop, smallest)
    totals[DIVERGENCE] += terms
    totals[TARGET_SUM] += target_sum


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


@storing
def measure_range(reference: Any, target: Any, place: Any, facts: Any, results: Any, scratch: Any, seen: Any) -> None:
    """Add a range of a pair to running totals, and its words to the lanes of content ids.

    Args:
        reference: Bit patterns of y, contiguous and read-only.
        target: Bit patterns of x.
        place: How far the first element lies from the first one of row 0 of the results, and the length of a row.
        facts: Orders at which values stop being plain, and the magnitude, and the smallest normal of the reference's type as
            bits, and the smallest positive value of the target's; fills of both sides; three rungs (relative, absolute) from
            tight to loose.
        results: ``TOTALS`` sums; ``LARGEST`` maxima; ``TALLIES`` counts; squares of d and of y for each row.
        scratch: Room for sums, maxima and counts of one block; for a copy of both sides of it; the same copies, read-only.
        seen: Whole words of both sides from the same place on, which starts a block of lanes; the lanes' weights; lanes of
            both sides, none where nobody asks for them.
    """
    (first, length), (bounds, fills, rungs), (totals, largest, tallies, squares) = place, facts, results
    sums, peaks, counts, plain_y, plain_x, copy_y, copy_x = scratch
    _low, _high, magnitude, normal, smallest = bounds
    start = 0
    while start < reference.size:
        if seen[3].size and start % TILE == 0:
            _add_tile_lanes(start, min(start + TILE, reference.size), reference.itemsize, target.itemsize, seen)
        stop = min(start // TILE * TILE + TILE, start + BLOCK, reference.size)
        if length >= _LONG_ROW:
            stop = min(stop, ((first + start) // length + 1) * length - first)
        differing, present, top, least = swift(reference, target, start, stop, sums, peaks, counts)
        excluded, y, x, begin, end = 0, reference, target, start, stop
        if not float64(as_float32(top)) + peaks[0] < magnitude:
            excluded = _sorted_out(reference, target, start, stop, bounds, fills, plain_y, plain_x, tallies)
            if excluded:
                y, x, begin, end = copy_y, copy_x, 0, stop - start
        if excluded or least < normal:
            _mind(y, x, begin, end, normal, excluded, sums, peaks, counts)
        elif not comparable(y, x) or differing < 0 or counts[COUNTS - 1] >= _SUMMED:
            sums[SUMS - 1], counts[COUNTS - 1] = distances(y, x, begin, end, normal)
        if present < 0 and not tallies[NEGATIVE]:
            tallies[NEGATIVE] = extremes(y, x, begin, end)[0] < 0
        tallies[UNEQUAL] |= differing != 0
        _add_up(y, x, begin, end, normal, rungs, excluded, sums, peaks, counts, totals, largest, tallies)
        _add_rows_and_terms(y, x, begin, end, first + start, length, smallest, differing, sums, totals, tallies, squares)
        start = stop

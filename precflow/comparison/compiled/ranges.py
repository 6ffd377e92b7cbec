"""A range of a pair, block after block, into running totals: what a thread does without the interpreter's lock.

The helpers here are inlined: numba counts references of every array that crosses a call, and a block of one row is small
enough for that to cost a fifth of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from precflow.comparison.compiled.block import COUNTS, LARGEST, SUMS, add_row_squares, close, exact_quotients, fused
from precflow.comparison.compiled.classes import CLASS_COUNTS, sort_out
from precflow.comparison.compiled.terms import divergence_terms
from precflow.compiling import storing

BLOCK = 4096  # elements: both sides of float32 take 32 KiB
_LONG_ROW = 512  # from here on a row is measured as blocks of its own
RUNGS = 3
TOTALS = SUMS + 1  # and the divergence
TALLIES = COUNTS + CLASS_COUNTS + RUNGS + 1  # and whether a value is negative
_CLASSES, _RUNGS, _NEGATIVE = COUNTS, COUNTS + CLASS_COUNTS, TALLIES - 1
_NEARLY = 1.0 - 1e-9  # far more than the estimates of quotients are off


@register_jitable(inline="always")
def _measure(block: Any, place: Any, facts: Any, results: Any, scratch: Any) -> None:
    """Measure one block, with what is no ordinary number sorted out where the first pass finds some, and add it up."""
    (reference, target), (fills, bounds, normal, _rungs, smallest) = block, facts
    (totals, _largest, tallies, squares), (measured, plain) = results, scratch
    sums, _block_largest, counts = measured
    low, high = fused(reference, target, normal, measured)
    if low <= bounds[0] or high >= bounds[1]:
        unequal = counts[0]
        excluded = sort_out(reference, target, fills, plain, tallies[_CLASSES:_RUNGS])
        reference, target = plain[0][: reference.size], plain[1][: target.size]
        low, high = fused(reference, target, normal, measured)
        counts[0] = unequal
        for k in (1, 3, 4):
            counts[k] -= excluded
        for k in range(_RUNGS, _NEGATIVE):
            tallies[k] -= excluded
    _add_up((reference, target), facts, results, measured)
    first, length = place
    if length >= _LONG_ROW:
        squares[0, first // length] += sums[1]
        squares[1, first // length] += sums[3]
    else:
        add_row_squares(reference, target, place, squares)
    tallies[_NEGATIVE] |= low < 0
    if not tallies[_NEGATIVE] and counts[0]:
        totals[SUMS] += divergence_terms(reference, target, smallest)


@register_jitable(inline="always")
def _add_up(block: Any, facts: Any, results: Any, measured: Any) -> None:
    """Add what one pass over a block found, and make sure of what it only estimated."""
    (reference, target), (_fills, _bounds, normal, rungs, _smallest) = block, facts
    (totals, largest, tallies, _squares), (sums, block_largest, counts) = results, measured
    for k in range(SUMS):
        totals[k] += sums[k]
    for k in range(COUNTS - 1):
        tallies[k] += counts[k]
    tallies[COUNTS - 1] = max(tallies[COUNTS - 1], counts[COUNTS - 1])
    largest[0] = max(largest[0], block_largest[0])
    if block_largest[1] > largest[1] * _NEARLY or block_largest[2] > largest[2] * _NEARLY:
        quotient, offset = exact_quotients(reference, target, normal)
        largest[1], largest[2] = max(largest[1], quotient), max(largest[2], offset)
    if block_largest[0] <= rungs[0, 1] or block_largest[2] <= rungs[0, 0] * _NEARLY:
        for k in range(_RUNGS, _NEGATIVE):
            tallies[k] += reference.size
    else:
        close(reference, target, rungs, tallies[_RUNGS:_NEGATIVE])


@register_jitable(inline="always")
def _scratch(reference: Any, target: Any) -> Any:
    """Return room for what one block gives, and for a copy of it."""
    measured = (np.zeros(SUMS), np.zeros(LARGEST), np.zeros(COUNTS, np.int64))
    return measured, (np.empty(BLOCK, reference.dtype), np.empty(BLOCK, target.dtype))


@storing
def measure_range(reference: Any, target: Any, place: Any, facts: Any, results: Any) -> None:
    """Add a range of a pair to running totals.

    Args:
        reference: Bit patterns of y, contiguous and read-only.
        target: Bit patterns of x.
        place: How far the first element lies from the first one of row 0 of the results, and the length of a row.
        facts: Fills of both sides; the orders at which values stop being plain; smallest normal of the reference's type, as
            bits; three rungs (relative, absolute) from tight to loose; smallest positive value of the target's type.
        results: ``TOTALS`` sums; ``LARGEST`` maxima; ``TALLIES`` counts; squares of d and of y for each row.
    """
    first, length = place
    scratch = _scratch(reference, target)
    start = 0
    while start < reference.size:
        stop = min(start + BLOCK, reference.size)
        if length >= _LONG_ROW:
            stop = min(stop, ((first + start) // length + 1) * length - first)
        _measure((reference[start:stop], target[start:stop]), (first + start, length), facts, results, scratch)
        start = stop

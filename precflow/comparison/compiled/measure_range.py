"""Adds a range of a pair to running totals, segment by segment: what a thread does without the interpreter's lock.

Nothing is allocated here: the caller hands in the memory for the results of one segment.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import decoded
from precflow.comparison.compiled.fast_path import add_fast, segment_end
from precflow.comparison.compiled.general_path import add_general
from precflow.comparison.compiled.layout import TILE
from precflow.compiling import compile_cached
from precflow.dumps.compiled.lanes import add_lanes, add_lanes_of_both


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


@compile_cached
def measure_range(reference: Any, target: Any, place: Any, facts: Any, results: Any, scratch: Any, seen: Any) -> None:
    """Add a range of a pair to running totals, and its words to the lanes of content ids.

    Args:
        reference: Bit patterns of y, contiguous and read-only.
        target: Bit patterns of x.
        place: How far the first element lies from the first one of row 0 of the results, and the length of a row.
        facts: The magnitude at which values stop being plain, and the smallest normal of the reference's type, as bits, and
            the smallest positive value of the target's; fills as for :func:`classes.sort_out`; three rungs (relative,
            absolute) from tight to loose.
        results: ``TOTALS`` sums; ``LARGEST`` maxima; ``TALLIES`` counts; squares of d and of y for each row. The same of the
            fills of one constant. The four numbers of ``extent`` (see ``classify_segment``).
        scratch: Sums of a segment; what is done with each pair; for each side, room for a copy of a segment, the same
            read-only, room for a segment as float32's bits, the same read-only.
        seen: Whole words of both sides from the same place on, which starts a block of lanes; the lanes' weights; lanes of
            both sides, none where nobody asks for them.
    """
    first, length = place
    _sums, _kinds, (_plain_y, _copy_y, room_y, wide_y), (_plain_x, _copy_x, room_x, wide_x) = scratch
    for tile in range(0, reference.size, TILE):
        stop = min(tile + TILE, reference.size)
        begin = tile
        while begin < stop:
            end = segment_end(begin, stop, first, length)
            raw_y, raw_x = reference[begin:end], target[begin:end]
            y, x = decoded(raw_y, room_y, wide_y)[: raw_y.size], decoded(raw_x, room_x, wide_x)[: raw_y.size]
            if not add_fast(y, x, raw_y, raw_x, first + begin, length, facts, results):
                add_general(raw_y, raw_x, first + begin, length, facts, results, scratch)
            begin = end
        if seen[3].size:
            _add_tile_lanes(tile, stop, reference.itemsize, target.itemsize, seen)

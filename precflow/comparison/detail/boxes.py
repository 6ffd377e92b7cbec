"""Cuts a tensor of any size into boxes: consecutive elements that are complete along all inner axes.

The errors of a box can be summed along each axis, which is not possible for a block of elements cut anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 1 << 17  # elements of a box, at most, so that its temporary arrays stay in the cache


@dataclass(frozen=True, slots=True)
class Box:
    """Consecutive elements in C order.

    Attributes:
        start: Flat index of the first element.
        outer: Position along each of the outer axes, of which the box has only one.
        first: First position along the next axis, number ``len(outer)``, of which the box may have a part.
        shape: Sizes along that axis and all inner ones, which are complete.
    """

    start: int
    outer: tuple[int, ...]
    first: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Flat index after the last element."""
        return self.start + math.prod(self.shape)


def cut_boxes(shape: tuple[int, ...], block: int = BLOCK) -> Iterator[Box]:
    """Yield the boxes of a tensor in order, each of at most ``block`` elements; none if the tensor has no elements.

    >>> [(box.start, box.outer, box.first, box.shape) for box in cut_boxes((2, 3, 2), 4)]
    [(0, (0,), 0, (2, 2)), (4, (0,), 2, (1, 2)), (6, (1,), 0, (2, 2)), (10, (1,), 2, (1, 2))]
    """
    sizes = shape or (1,)
    if not math.prod(sizes):
        return
    axis = next(axis for axis in range(len(sizes)) if math.prod(sizes[axis + 1 :]) <= block)
    inner = math.prod(sizes[axis + 1 :])
    # As few boxes as possible, all of about the same length: 10 positions by at most 8 are cut as 5 and 5, not as 8 and 2.
    parts = -(-sizes[axis] // max(1, block // inner))
    step = -(-sizes[axis] // parts)
    whole = sizes[axis] * inner
    for number in range(math.prod(sizes[:axis])):
        outer = unravel(number, sizes[:axis])
        for first in range(0, sizes[axis], step):
            rows = min(step, sizes[axis] - first)
            yield Box(number * whole + first * inner, outer, first, (rows, *sizes[axis + 1 :]))


def unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index along each axis for a flat index, in C order.

    >>> unravel(7, (2, 3, 2)), unravel(0, ())
    ((1, 0, 1), ())
    """
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))

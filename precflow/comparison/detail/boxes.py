"""Cuts a tensor of any size into boxes: runs of elements that are whole along their inner axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 1 << 17  # elements of a box, at most, so that its temporaries stay in the cache


@dataclass(frozen=True, slots=True)
class Box:
    """Consecutive elements in C order.

    Attributes:
        start: Flat number of the first element.
        outer: Index of the box along the axes before ``len(outer)``; one position of each.
        first: First position along axis ``len(outer)``.
        shape: Sizes along axis ``len(outer)`` and all behind it; the latter are whole.
    """

    start: int
    outer: tuple[int, ...]
    first: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Flat number of the element behind the last."""
        return self.start + math.prod(self.shape)


def cut_boxes(shape: tuple[int, ...], block: int = BLOCK) -> Iterator[Box]:
    """Return boxes of at most ``block`` elements that together are the tensor, in order; none of a tensor without elements.

    >>> [(box.start, box.outer, box.first, box.shape) for box in cut_boxes((2, 3, 2), 4)]
    [(0, (0,), 0, (2, 2)), (4, (0,), 2, (1, 2)), (6, (1,), 0, (2, 2)), (10, (1,), 2, (1, 2))]
    """
    sizes = shape or (1,)
    if not math.prod(sizes):
        return
    axis = next(axis for axis in range(len(sizes)) if math.prod(sizes[axis + 1 :]) <= block)
    inner = math.prod(sizes[axis + 1 :])
    step = _even(sizes[axis], max(1, block // inner))
    whole = sizes[axis] * inner
    for number in range(math.prod(sizes[:axis])):
        outer = unravel(number, sizes[:axis])
        for first in range(0, sizes[axis], step):
            rows = min(step, sizes[axis] - first)
            yield Box(number * whole + first * inner, outer, first, (rows, *sizes[axis + 1 :]))


def unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of a flat number, in C order.

    >>> unravel(7, (2, 3, 2)), unravel(0, ())
    ((1, 0, 1), ())
    """
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))


def _even(size: int, most: int) -> int:
    """Return the step that cuts a size into the fewest parts of at most ``most``, all about as long."""
    return -(-size // -(-size // most))

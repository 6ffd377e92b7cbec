"""Adds up squared errors over two axes of a tensor at once, coarsely: attention goes wrong by heads and tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precflow.comparison.detail.boxes import Box
from precflow.comparison.fused.value_classes import Floats

MOST_ROWS, MOST_COLUMNS = 16, 32  # cells; an axis that is longer is cut into so many stretches
_FEWEST_AXES = 2


@dataclass(frozen=True)
class HeatMap:
    """How the squared error is distributed over two axes.

    Attributes:
        axes: Their numbers; the first one goes down, the second one to the right.
        sizes: Their numbers of positions.
        shares: Rows of shares of the whole squared error.
    """

    axes: tuple[int, int]
    sizes: tuple[int, int]
    shares: tuple[tuple[float, ...], ...]


def choose_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the axes to be drawn: heads and tokens of attention's four, else the last two; ``None`` if one has one position.

    >>> choose_axes((2, 12, 77, 64)), choose_axes((3, 77, 768)), choose_axes((77,)), choose_axes((77, 1))
    ((1, 2), (1, 2), None, None)
    """
    if len(shape) < _FEWEST_AXES:
        return None
    last = len(shape) - (1 if len(shape) > 3 else 0)
    first, second = last - 2, last - 1
    return (first, second) if min(shape[first], shape[second]) > 1 else None


class HeatSums:
    """Sums of squared errors by cells of two axes.

    Args:
        shape: Of the tensor.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._sizes = shape
        self.axes = choose_axes(shape)
        sizes = [shape[axis] for axis in self.axes] if self.axes else [0, 0]
        self.sums = np.zeros((min(sizes[0], MOST_ROWS), min(sizes[1], MOST_COLUMNS)))

    def add(self, box: Box, squares: Floats) -> None:
        """Add the squared errors of a box, which are given flat."""
        if self.axes is None:
            return
        inner = len(box.outer)  # the first axis of which the box has more than one position
        others = tuple(axis for axis in range(len(box.shape)) if axis + inner not in self.axes)
        table = squares.reshape(box.shape).sum(axis=others)
        down, right = (self._find_cells(box, axis, most) for axis, most in zip(self.axes, self.sums.shape, strict=True))
        np.add.at(self.sums, (down[:, None], right[None, :]), table.reshape(down.size, right.size))

    def _find_cells(self, box: Box, axis: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the row or column of cells that each position of a box along an axis belongs to."""
        inner = len(box.outer)
        if axis < inner:
            positions = np.array([box.outer[axis]])
        else:
            start = box.first if axis == inner else 0
            positions = np.arange(start, start + box.shape[axis - inner])
        return positions * most // self._sizes[axis]

    def merge(self, other: HeatSums) -> None:
        """Add the sums of another part of the same tensor."""
        self.sums = self.sums + other.sums

    def draw(self) -> HeatMap | None:
        """Return the shares; ``None`` without two axes, or without any error."""
        total = self.sums.sum()
        if self.axes is None or not total:
            return None
        shares = tuple(tuple(float(share) for share in row) for row in self.sums / total)
        first, second = self.axes
        return HeatMap(self.axes, (self._sizes[first], self._sizes[second]), shares)

"""Adds up squared errors by position along each axis of a tensor, box by box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precflow.comparison.detail.boxes import Box
from precflow.comparison.detail.heat_map import HeatSums
from precflow.comparison.fused.value_classes import Floats

MOST_GROUPS = 1 << 16  # sums along one axis; on longer axes neighbouring positions share one, so that memory stays bounded
PROFILE = 48  # stretches in which an axis is drawn
SHOWN = 5  # positions with the largest shares that are listed


@dataclass(frozen=True)
class Axis:
    """How the squared error is distributed along one axis.

    Attributes:
        number: Number of the axis, from 0.
        size: Number of positions.
        step: Number of positions that share a sum: 1, except on axes of more than ``MOST_GROUPS`` positions.
        top: ``(first, last, share)`` of the (groups of) positions with the largest shares of the tensor's squared error.
        profile: Shares of at most ``PROFILE`` equal stretches of the axis, in order. They add up to 1; empty without any error.
    """

    number: int
    size: int
    step: int = 1
    top: tuple[tuple[int, int, float], ...] = ()
    profile: tuple[float, ...] = ()


class AxisSums:
    """Sums of squared errors by position, for every axis of a tensor.

    Args:
        shape: Sizes; a tensor without axes counts as one of a single position.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sizes = shape or (1,)
        self.steps = tuple(max(1, -(-size // MOST_GROUPS)) for size in self.sizes)
        self.sums = [np.zeros(-(-size // step)) for size, step in zip(self.sizes, self.steps, strict=True)]
        self.heat = HeatSums(shape)

    def add(self, box: Box, squares: Floats) -> None:
        """Add the squared errors of a box, which are given flat."""
        self.heat.add(box, squares)
        table = squares.reshape(box.shape)
        for axis, place in enumerate(box.outer):
            self.sums[axis][place // self.steps[axis]] += squares.sum()
        first = len(box.outer)
        for axis in range(first, len(self.sizes)):
            along = table.reshape(table.shape[0], -1).sum(axis=1)
            self._add_along(axis, box.first if axis == first else 0, along)
            table = table.sum(axis=0)  # the next axis needs only the sums over this one

    def merge(self, other: AxisSums) -> None:
        """Add the sums of another part of the same tensor."""
        self.sums = [mine + theirs for mine, theirs in zip(self.sums, other.sums, strict=True)]
        self.heat.merge(other.heat)

    def axes(self) -> tuple[Axis, ...]:
        """Return the squared error along each axis."""
        return tuple(self._describe_axis(number) for number in range(len(self.sizes)))

    def shares(self, axis: int) -> Floats:
        """Return the share of the squared error of each position (or group of positions); all 0 if there is no error."""
        total = self.sums[axis].sum()
        return self.sums[axis] / total if total else self.sums[axis]

    def _add_along(self, axis: int, first: int, sums: Floats) -> None:
        step = self.steps[axis]
        if step == 1:
            self.sums[axis][first : first + sums.size] += sums
            return
        groups = np.arange(first, first + sums.size) // step
        self.sums[axis][groups[0] : groups[-1] + 1] += np.bincount(groups - groups[0], sums)

    def _describe_axis(self, number: int) -> Axis:
        shares, step, size = self.shares(number), self.steps[number], self.sizes[number]
        groups = [int(group) for group in np.lexsort((np.arange(shares.size), -shares))[:SHOWN] if shares[group]]
        top = tuple((group * step, min((group + 1) * step, size) - 1, float(shares[group])) for group in groups)
        if not top:
            return Axis(number, size, step)
        # Stretches whose lengths differ by at most one.
        bounds = np.linspace(0, shares.size, min(PROFILE, shares.size), endpoint=False).astype(np.int64)
        return Axis(number, size, step, top, tuple(float(share) for share in np.add.reduceat(shares, bounds)))

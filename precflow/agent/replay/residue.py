"""The rounding residue of an output, added up over blocks: variance, slope, curve and largest element.

What they are for, and their formulas, are in :mod:`precflow.agent.replay.numbers`.
"""

from __future__ import annotations

import functools
import math
from typing import Dict, List, Optional

import torch

BINS = 32
CLIP = 8.0
SQUARE_CLIP = 32.0


def take_numbers(
    residue: Residue, which: int, once: Optional[Distinct], edges: Optional[torch.Tensor], count: int
) -> Dict[str, float]:
    """Return V, A, B and M; A and B of each distinct value once if ``once`` has them."""
    return {**residue.numbers(count), **({} if once is None or edges is None else once.numbers(which, edges))}


class Residue:
    """The rounding residue of an output, added up over the blocks."""

    def __init__(self) -> None:
        self._square = self._product = self._weight = self._largest = 0.0
        self._bins = torch.zeros(2, BINS, dtype=torch.float64)  # sum of z, and number of elements

    def add(self, z: torch.Tensor, weight: torch.Tensor, places: torch.Tensor, kept: Optional[torch.Tensor]) -> None:
        """Add a block.

        Args:
            z: Errors over their deviations; clipped here. 0 at places that are left out.
            weight: Values over deviations.
            places: The bin of each value.
            kept: Where values count; ``None`` means everywhere.
        """
        if not z.numel():
            return
        low, high = torch.aminmax(z)
        self._largest = max(self._largest, -float(low), float(high))
        if self._largest > SQUARE_CLIP:
            z.clamp_(-SQUARE_CLIP, SQUARE_CLIP)
        self._square += float(z.dot(z))
        if self._largest > CLIP:
            z.clamp_(-CLIP, CLIP)
        self._product += float(z.dot(weight))
        self._weight += float(weight.dot(weight))
        self._bins[0] += torch.bincount(places, weights=z, minlength=BINS)
        self._bins[1] += torch.bincount(places if kept is None else places[kept], minlength=BINS)

    def numbers(self, count: int) -> Dict[str, float]:
        """Return V, A, B and M of so many values."""
        filled = self._bins[1] > 0
        curve = (self._bins[0].abs()[filled] / self._bins[1][filled].sqrt()).max() if bool(filled.any()) else 0.0
        return {
            "variance": divide(self._square, count),
            "slope": divide(abs(self._product), math.sqrt(self._weight)),
            "curve": float(curve),
            "largest": finite(self._largest),
        }


class Inner:
    """Variance and largest element of errors in units of the rounding of inner terms, added up over the blocks."""

    def __init__(self) -> None:
        self._square = self._largest = 0.0

    def add(self, z: torch.Tensor) -> None:
        """Add a block of errors over their deviations; 0 at places that are left out."""
        if z.numel():
            self._largest = max(self._largest, float(z.abs().max()))
            self._square += float(z.clamp(-SQUARE_CLIP, SQUARE_CLIP).square().sum())

    def numbers(self, count: int) -> Dict[str, float]:
        """Return V and M of so many values."""
        return {"variance": divide(self._square, count), "largest": finite(self._largest)}


class Distinct:
    """Errors of output and control by value of float64, where values occur more than once."""

    def __init__(self) -> None:
        self._parts: List[torch.Tensor] = []

    def add(self, part: torch.Tensor, kept: Optional[torch.Tensor]) -> None:
        """Add a block.

        Args:
            part: ``[4, elements]``: value of float64, z of the output, z of the control, weight.
            kept: Where values count; ``None`` means everywhere.
        """
        self._parts.append(part if kept is None else part[:, kept])

    def numbers(self, which: int, edges: torch.Tensor) -> Dict[str, float]:
        """Return A and B of the output (0) or the control (1), with each distinct value counted once."""
        values, z, weight = self._means[0], self._means[1 + which], self._means[3]
        if not values.numel():
            return {"slope": 0.0, "curve": 0.0}
        places = torch.bucketize(values, edges)
        sums, counts = (torch.bincount(places, weights=each, minlength=BINS) for each in (z, torch.ones_like(z)))
        curve = (sums.abs() / counts.clamp_(min=1.0).sqrt_()).max()
        return {"slope": divide(abs(float(z.dot(weight))), float(weight.norm())), "curve": float(curve)}

    @functools.cached_property
    def _means(self) -> torch.Tensor:
        """Means over equal values, ``[4, distinct values]``."""
        every = torch.cat(self._parts, 1)
        values, inverse, counts = torch.unique(every[0], return_inverse=True, return_counts=True)
        means = torch.zeros(4, values.numel(), dtype=torch.float64).index_add_(1, inverse, every).div_(counts)
        means[0] = values
        return means


def divide(size: float, scale: float) -> float:
    """Return a quotient; 0 for 0 over 0, and the largest float for more than that over 0, because JSON has no infinity."""
    if not size:
        return 0.0
    return finite(size / scale) if scale else finite(math.inf)


def finite(value: float) -> float:
    """Return the largest float in place of infinity and NaN."""
    return value if math.isfinite(value) else 1.7976931348623157e308

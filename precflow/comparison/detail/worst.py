"""The worst elements: the largest errors with their places, kept few while blocks go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MOST = 10


@dataclass(frozen=True, slots=True)
class Worst:
    """The elements with the largest of some figure, largest first; of equals the one that comes first in the tensor.

    Attributes:
        figures: What they are ranked by, all above 0.
        places: Flat number of each.
    """

    figures: tuple[float, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def floor(self) -> float:
        """What a later element has to lie above to come in."""
        return self.figures[-1] if len(self.figures) == MOST else 0.0

    def __add__(self, other: Worst) -> Worst:
        """Keep the worst of two parts."""
        pairs = sorted(
            zip((*self.figures, *other.figures), (*self.places, *other.places), strict=True), key=lambda one: (-one[0], one[1])
        )[:MOST]
        return Worst(tuple(figure for figure, _ in pairs), tuple(place for _, place in pairs))


def worst(figures: npt.NDArray[Any], start: int, floor: float = 0.0) -> Worst:
    """Return the worst elements of a block.

    Args:
        figures: Flat, without NaN.
        start: Flat number of the first one in the tensor.
        floor: What does not lie above it is of no interest; a block without such an element costs one maximum.
    """
    if not figures.size or not figures.max() > floor:
        return Worst()
    found = np.flatnonzero(figures > floor)
    if found.size > MOST:
        kth = np.partition(figures[found], found.size - MOST)[found.size - MOST]
        above, level = found[figures[found] > kth], found[figures[found] == kth]
        found = np.concatenate([above, level[: MOST - above.size]])
    order = np.lexsort((found, -figures[found].astype(np.float64)))
    return Worst(tuple(float(figures[place]) for place in found[order]), tuple(start + int(place) for place in found[order]))


def first_places(mask: npt.NDArray[np.bool_], start: int, most: int = MOST) -> tuple[int, ...]:
    """Return the flat numbers of the first elements that a mask marks."""
    return tuple(start + int(place) for place in np.flatnonzero(mask)[:most])

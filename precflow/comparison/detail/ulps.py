"""How many elements are how many units in the last place apart, in classes that double in width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_NEAR = 1 << 12  # distances below it are counted singly first, which is ten times faster than to search their class
_EDGES = np.array([0, *(1 << power for power in range(64)), (1 << 64) - 1], np.uint64)  # largest distance of each class


@dataclass(frozen=True)
class UlpCounts:
    """Elements by their distance in units in the last place.

    Attributes:
        counts: Class k holds distances over ``2^(k-2)``, up to ``2^(k-1)``: class 0 is 0, class 1 is 1, class 2 is 2, class 3
            is 3 and 4, class 4 is 5 to 8. Ends with the largest class that occurs.
    """

    counts: tuple[int, ...] = ()

    def __add__(self, other: UlpCounts) -> UlpCounts:
        """Add up the counts of two parts."""
        longer, shorter = sorted((self.counts, other.counts), key=len, reverse=True)
        padded = shorter + (0,) * (len(longer) - len(shorter))
        return UlpCounts(tuple(first + second for first, second in zip(longer, padded, strict=True)))

    def rows(self) -> list[tuple[int, int, int]]:
        """Return ``(smallest distance, largest distance, elements)`` of every class, also of empty ones in between.

        >>> UlpCounts((7, 0, 1, 2)).rows()
        [(0, 0, 7), (1, 1, 0), (2, 2, 1), (3, 4, 2)]
        """
        return [(0 if k == 0 else (1 << (k - 1)) // 2 + 1, 0 if k == 0 else 1 << (k - 1), n) for k, n in enumerate(self.counts)]

    def median(self) -> tuple[int, int]:
        """Return the class that holds the (lower) median, as its smallest and its largest distance; 0 to 0 of no element."""
        half, seen = (sum(self.counts) + 1) // 2, 0
        for low, high, count in self.rows():
            seen += count
            if seen >= half:
                return low, high
        return 0, 0


def ulp_counts(apart: npt.NDArray[Any]) -> UlpCounts:
    """Count distances.

    Args:
        apart: Unsigned integers of any width, flat.
    """
    near = apart[apart < _NEAR] if apart.dtype.itemsize > 1 else apart
    singly = np.bincount(near.astype(np.int64), minlength=1)
    total = np.bincount(np.searchsorted(_EDGES, np.arange(singly.size, dtype=np.uint64)), singly, _EDGES.size)
    if near.size < apart.size:
        far = np.searchsorted(_EDGES, apart[apart >= _NEAR].astype(np.uint64))
        total += np.bincount(far, minlength=_EDGES.size)
    last = int(np.max(np.flatnonzero(total), initial=-1))
    return UlpCounts(tuple(int(count) for count in total[: last + 1]))

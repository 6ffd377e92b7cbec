"""Measures the errors of a pair of tensors: their sizes, units in the last place, and the worst elements.

``precflow compare A B`` shows them for a single record. The tensors are cut into boxes that fit into the cache; each box gives
an :class:`Errors`, and these are added up.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.detail.axes import AxisSums
from precflow.comparison.detail.boxes import Box
from precflow.comparison.detail.histogram import Magnitudes, count_magnitudes
from precflow.comparison.fused.integers import integer_distance
from precflow.comparison.fused.kernel import PairFacts, pair_facts
from precflow.comparison.fused.ulp_distance import has_equal_bits, ulp_distances
from precflow.comparison.fused.value_classes import BoolArray, FloatPair, Floats, classify_pairs, widen

LARGEST_FLOAT = sys.float_info.max
"""Stands for the difference of two numbers of float64 that are further apart."""
_NEAR = 1 << 12  # distances below are first counted by value: ten times faster than searching the class of each element
_EDGES = np.array([0, *(1 << power for power in range(64)), (1 << 64) - 1], np.uint64)  # largest distance of each class
MOST = 10  # worst elements that are kept


@dataclass(frozen=True)
class UlpCounts:
    """Number of elements by their distance in units in the last place, in classes that double in width.

    Attributes:
        counts: Number of elements in each class. Class k has the distances above ``2^(k-2)``, up to ``2^(k-1)``: class 0 is
            0, class 1 is 1, class 2 is 2, class 3 is 3 and 4, class 4 is 5 to 8. Ends with the largest class that occurs.
    """

    counts: tuple[int, ...] = ()

    def __add__(self, other: UlpCounts) -> UlpCounts:
        """Add up the counts of two parts."""
        longer, shorter = sorted((self.counts, other.counts), key=len, reverse=True)
        padded = shorter + (0,) * (len(longer) - len(shorter))
        return UlpCounts(tuple(first + second for first, second in zip(longer, padded, strict=True)))

    def rows(self) -> list[tuple[int, int, int]]:
        """Return ``(smallest distance, largest distance, elements)`` of every class, including empty ones.

        >>> UlpCounts((7, 0, 1, 2)).rows()
        [(0, 0, 7), (1, 1, 0), (2, 2, 1), (3, 4, 2)]
        """
        return [(0 if k == 0 else (1 << (k - 1)) // 2 + 1, 0 if k == 0 else 1 << (k - 1), n) for k, n in enumerate(self.counts)]

    def median(self) -> tuple[int, int]:
        """Return the smallest and largest distance of the class with the (lower) median; 0 and 0 if there are no elements."""
        half, seen = (sum(self.counts) + 1) // 2, 0
        for low, high, count in self.rows():
            seen += count
            if seen >= half:
                return low, high
        return 0, 0


def count_ulps(apart: npt.NDArray[Any]) -> UlpCounts:
    """Count distances in units in the last place by class.

    Args:
        apart: Distances as unsigned integers of any width, flat.
    """
    near = apart[apart < _NEAR] if apart.dtype.itemsize > 1 else apart  # distances of one byte are all near
    singly = np.bincount(near.astype(np.int64), minlength=1)
    total = np.bincount(np.searchsorted(_EDGES, np.arange(singly.size, dtype=np.uint64)), singly, _EDGES.size)
    if near.size < apart.size:
        far = np.searchsorted(_EDGES, apart[apart >= _NEAR].astype(np.uint64))
        total += np.bincount(far, minlength=_EDGES.size)
    last = int(np.max(np.flatnonzero(total), initial=-1))
    return UlpCounts(tuple(int(count) for count in total[: last + 1]))


@dataclass(frozen=True, slots=True)
class WorstElements:
    """The ``MOST`` elements with the largest error of one kind, largest first; of equal errors the first in the tensor.

    Attributes:
        figures: Their errors, all above 0.
        places: Their flat indices.
    """

    figures: tuple[float, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def floor(self) -> float:
        """An element must have a larger error than this to become one of them; 0 while there are fewer than ``MOST``."""
        return self.figures[-1] if len(self.figures) == MOST else 0.0

    def __add__(self, other: WorstElements) -> WorstElements:
        """Keep the worst of two parts."""
        pairs = sorted(
            zip((*self.figures, *other.figures), (*self.places, *other.places), strict=True),
            key=lambda pair: (-pair[0], pair[1]),
        )[:MOST]
        return WorstElements(tuple(figure for figure, _ in pairs), tuple(place for _, place in pairs))


def find_worst(figures: npt.NDArray[Any], start: int, floor: float = 0.0) -> WorstElements:
    """Return the worst elements of a block.

    Args:
        figures: Errors, flat, without NaN.
        start: Flat index of the first one in the tensor.
        floor: Only larger errors count. A block without any takes no more time than finding its maximum.
    """
    if not figures.size or not figures.max() > floor:
        return WorstElements()
    worst = np.flatnonzero(figures > floor)
    if worst.size > MOST:  # of many errors equal to the smallest that is kept, the first ones in the tensor
        kth = np.partition(figures[worst], worst.size - MOST)[worst.size - MOST]
        above, level = worst[figures[worst] > kth], worst[figures[worst] == kth]
        worst = np.concatenate([above, level[: MOST - above.size]])
    order = np.lexsort((worst, -figures[worst].astype(np.float64)))
    return WorstElements(
        tuple(float(figures[place]) for place in worst[order]), tuple(start + int(place) for place in worst[order])
    )


def find_first(mask: npt.NDArray[np.bool_], start: int, most: int = MOST) -> tuple[int, ...]:
    """Return the flat indices of the first elements at which a mask is true; ``start`` is the index of its first element."""
    return tuple(start + int(place) for place in np.flatnonzero(mask)[:most])


@dataclass(frozen=True)
class Errors:
    """The errors of a part of a pair of tensors; y is the reference, x the target. The errors of two parts can be added.

    Pairs with NaN or an infinity on either side, or a mask's fill value on both, are left out. Relative errors also leave out
    small y: 0, or subnormal in the reference's type.

    Attributes:
        unequal: Number of elements whose values differ; NaN equals NaN, and -0 equals 0.
        first: Flat index of the first of these; -1 if there is none.
        mismatched: Flat indices of the first NaN, infinities and mask fills without an equal partner.
        absolute: Elements with the largest ``|x - y|``.
        relative: Elements with the largest ``|x - y| / |y|``.
        sizes: Magnitudes of ``|x - y|``.
        ulps: Distances in units in the last place of the less precise type; empty for integers.
    """

    unequal: int = 0
    first: int = -1
    mismatched: tuple[int, ...] = ()
    absolute: WorstElements = field(default_factory=WorstElements)
    relative: WorstElements = field(default_factory=WorstElements)
    sizes: Magnitudes = field(default_factory=Magnitudes)
    ulps: UlpCounts = field(default_factory=UlpCounts)

    def __add__(self, other: Errors) -> Errors:
        """Merge two parts; ``self`` comes first in the tensor."""
        return Errors(
            unequal=self.unequal + other.unequal,
            first=other.first if self.first < 0 else self.first,
            mismatched=(*self.mismatched, *other.mismatched)[:MOST],
            absolute=self.absolute + other.absolute,
            relative=self.relative + other.relative,
            sizes=self.sizes + other.sizes,
            ulps=self.ulps + other.ulps,
        )


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of one box, element by element. Excluded pairs have 0 as distance and as magnitude.

    Attributes:
        distance: ``|x - y|``, float64.
        magnitude: ``|y|``, float64.
        unequal: True where the values differ.
        mismatched: True where the classes of values differ; ``None`` if nowhere.
        excluded: True for pairs that are not ordinary numbers; ``None`` if there are none.
        apart: Distances in units in the last place; ``None`` for integers.
        smallest: A ``|y|`` below this is small and left out of relative errors; 0 for integers.
    """

    distance: Floats
    magnitude: Floats
    unequal: BoolArray
    mismatched: BoolArray | None
    excluded: BoolArray | None
    apart: npt.NDArray[Any] | None
    smallest: float


def measure_differences(
    reference: npt.NDArray[Any], target: npt.NDArray[Any], *, inexact: bool, floors: FloatPair = (0.0, 0.0)
) -> Differences | int:
    """Return the differences of a block, or only the number of its elements if no bit differs.

    Args:
        reference: Flat reals or integers.
        target: As many elements.
        inexact: At least one side is floating point.
        floors: Magnitudes below which constants are not mask fills, for the reference and for the target.
    """
    if reference.dtype == target.dtype and has_equal_bits(reference, target):
        return int(reference.size)
    return _measure_float_differences(reference, target, floors) if inexact else _measure_integer_differences(reference, target)


def measure_box(found: Differences, box: Box, sums: AxisSums, largest: float, before: Errors) -> Errors:
    """Return the errors of a box, and add its squared errors to the sums along the axes.

    Args:
        found: The differences of the box.
        box: Where the box lies.
        sums: Sums along the axes; changed.
        largest: Largest ``|x - y|`` of the whole tensor. Errors are divided by a power of two close to it before they are
            squared, so that no square overflows. A difference that itself overflows counts as the largest float64.
        before: Errors of earlier boxes; elements that cannot be among the worst of them are skipped.
    """
    exponent = math.frexp(min(largest, LARGEST_FLOAT))[1]
    scaled = np.ldexp(np.minimum(found.distance, LARGEST_FLOAT), -exponent)
    sums.add(box, scaled * scaled)
    usable = found.magnitude >= found.smallest if found.smallest else found.magnitude > 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(usable, found.distance / found.magnitude, 0.0)
    compared = found.distance if found.excluded is None else found.distance[~found.excluded]
    counted = usable if found.excluded is None else usable & ~found.excluded
    ulps = UlpCounts() if found.apart is None else count_ulps(found.apart[counted])
    places = np.flatnonzero(found.unequal)
    return Errors(
        unequal=int(places.size),
        first=box.start + int(places[0]) if places.size else -1,
        mismatched=() if found.mismatched is None else find_first(found.mismatched, box.start),
        absolute=find_worst(found.distance, box.start, before.absolute.floor),
        relative=find_worst(relative, box.start, before.relative.floor),
        sizes=count_magnitudes(compared),
        ulps=ulps,
    )


def measure_equal_block(reference: npt.NDArray[Any], *, inexact: bool, floors: FloatPair = (0.0, 0.0)) -> Errors:
    """Return the errors of a block whose bits are equal on both sides: every compared element has an error of 0."""
    if not inexact:
        return Errors(sizes=Magnitudes(int(reference.size)))
    facts = pair_facts(reference.dtype.name, reference.dtype.name)
    values = widen(reference)
    excluded = _find_excluded(values, values, facts, floors)
    compared = values if excluded is None else values[~excluded[0]]
    usable = int(np.count_nonzero(np.abs(compared) >= facts.reference.smallest_normal))
    return Errors(sizes=Magnitudes(int(compared.size)), ulps=UlpCounts((usable,) if usable else ()))


def _measure_float_differences(reference: npt.NDArray[Any], target: npt.NDArray[Any], floors: FloatPair) -> Differences:
    facts = pair_facts(reference.dtype.name, target.dtype.name)
    y, x = widen(reference), widen(target)
    unequal = (y != x) & ~(np.isnan(y) & np.isnan(x))
    groups = _find_excluded(y, x, facts, floors)
    if groups is not None:  # after `unequal`, which also counts NaN and fills; from here on such pairs have no error
        y[groups[0]] = x[groups[0]] = 0.0
    with np.errstate(over="ignore"):  # 1.7e308 minus -1.7e308 is infinite; the largest float64 keeps the sums finite
        distance = np.minimum(np.abs(x - y), np.finfo(np.float64).max)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = ulp_distances(reference, target, facts.coarse)
    return Differences(
        distance=distance,
        magnitude=np.abs(y),
        unequal=unequal,
        mismatched=groups[1] if groups else None,
        excluded=groups[0] if groups else None,
        apart=apart,
        smallest=facts.reference.smallest_normal,
    )


def _find_excluded(y: Floats, x: Floats, facts: PairFacts, floors: FloatPair) -> tuple[BoolArray, BoolArray] | None:
    """Return masks of the pairs that are not ordinary numbers, and of those that mismatch; ``None`` if all are ordinary."""
    sides = zip((y, x), facts.fills, strict=True)
    # A shortcut for blocks without large numbers. With NaN both comparisons are false, so it is not taken.
    if all(values.min() > -fills.plain and values.max() < fills.plain for values, fills in sides):
        return None
    groups = classify_pairs(y, x, facts.fills, floors)
    return groups.excluded, groups.mismatched


def _measure_integer_differences(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> Differences:
    apart = integer_distance(reference, target)
    wide = apart.astype(np.float64)
    magnitude = np.abs(reference.astype(np.float64))
    return Differences(wide, magnitude, apart != 0, None, None, None, 0.0)

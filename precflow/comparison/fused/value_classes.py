"""Sorts values into classes: ordinary numbers, and mask fills, infinities and NaN, which must not enter the sums.

One masked attention score of ``finfo.min`` outweighs every other element of a norm: it hides any fault, or fails a clean pair
whose two sides fill with different constants. So fills are measured by themselves. A fill is a known constant that is far from
everything else in its tensor (``agent/contract.py`` has the list); all other values are ordinary, however large.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import FILLS, FILLS_FAR, LARGEST, fill_bands
from precflow.dumps.dtypes import FloatFacts

Floats = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Classes = npt.NDArray[np.uint8]
FloatPair = tuple[float, float]  # of the reference and of the target

ORDINARY, NOT_A_NUMBER, INFINITY, MINUS_INFINITY, FIRST_FILL = range(5)
"""Classes; from ``FIRST_FILL`` on one class for each constant of the list, the same on both sides."""

CLOSE = 0.02  # of the larger one; a fill and an ordinary number no further apart than this count as two ordinary numbers
_WIDE = frozenset({"float64", "float32"})  # no computation saturates at the largest value of these


@dataclass(frozen=True, slots=True, eq=False)
class Fills:
    """Which values of an element type may be mask fills, and which are saturated.

    Attributes:
        plain: Values of a smaller magnitude are ordinary, and not saturated.
        lows: Lower ends of the bands, ascending.
        highs: Their upper ends.
        sizes: Magnitudes of their constants.
        classes: The class of each band.
        low: Whether a class is a fill at the lower end, by class.
        ends: Classes of the smallest and of the largest finite value of the type; ``ORDINARY`` where it has no fills.
        largest: Magnitude at which it saturates; infinite for float32 and float64.
        slack: A value no further from that than this counts as saturated too.
    """

    plain: float
    lows: Floats
    highs: Floats
    sizes: Floats
    classes: Classes
    low: BoolArray
    ends: tuple[int, int]
    largest: float
    slack: float


@functools.cache
def fills_of(facts: FloatFacts, constants: tuple[float, ...] = FILLS) -> Fills:
    """Return the fills of a type.

    Args:
        facts: Of the type.
        constants: The list: ``contract.FILLS``, and what a recipe adds to it.
    """
    bands = fill_bands(facts.digits, facts.largest, constants)
    # The last band has no value in it: it is there because a type without fills needs one for the search.
    lows = np.array([*(band.low for band in bands), np.inf])
    highs = np.array([*(band.high for band in bands), -np.inf])
    sizes = np.array([*(abs(band.constant) for band in bands), 0.0])
    classes = np.array([FIRST_FILL + band.number for band in bands] + [ORDINARY], np.uint8)
    low = np.zeros(FIRST_FILL + len(constants), np.bool_)
    low[FIRST_FILL:] = np.array(constants) < 0
    largest = np.inf if facts.name in _WIDE else facts.largest
    own = LARGEST.get(facts.name) if bands else None
    ends = (ORDINARY, ORDINARY) if own is None else (FIRST_FILL + constants.index(-own), FIRST_FILL + constants.index(own))
    nearest = min((min(abs(band.low), abs(band.high)) for band in bands), default=np.inf)
    slack = 2 * float(np.ldexp(1.0, int(np.frexp(facts.largest)[1]) - facts.digits))
    return Fills(min(nearest, largest), lows, highs, sizes, classes, low, ends, largest, slack)


def widen(block: npt.NDArray[Any]) -> Floats:
    """Return the values as float64, exactly; bfloat16 by its bits, which is ten times faster than ``ml_dtypes``' cast."""
    if block.dtype.name == "bfloat16":
        bits: npt.NDArray[np.uint32] = block.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        block = bits.view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN would warn
        return block.astype(np.float64)


@dataclass(frozen=True, slots=True)
class ClassifiedValues:
    """The values of a part of one tensor, by class.

    Attributes:
        kinds: Class of each.
        largest: Largest magnitude of a finite value that is near no constant; 0 if there is none.
        least: Smallest constant, by magnitude, that was taken for a fill; infinite if there is none.
    """

    kinds: Classes
    largest: float
    least: float

    @property
    def floor(self) -> float:
        """If the part is the whole tensor: the magnitude from which a constant is far from everything else."""
        return FILLS_FAR * self.largest


def classify_values(values: Floats, fills: Fills, floor: float = 0.0) -> ClassifiedValues:
    """Sort values into classes.

    Args:
        values: Any.
        fills: Of their type.
        floor: Constants of a smaller magnitude are ordinary numbers in this tensor.
    """
    kinds = np.zeros(values.shape, np.uint8)
    top = max(-float(values.min()), float(values.max())) if values.size else 0.0
    if top < fills.plain:  # False for NaN
        return ClassifiedValues(kinds, top, np.inf)
    magnitudes = np.abs(values)
    plain = magnitudes < fills.plain
    largest = float(np.max(magnitudes, where=plain, initial=0.0))
    others = ~plain
    special = values[others]
    band = np.searchsorted(fills.lows, special, side="right") - 1
    inside = (band >= 0) & (special <= fills.highs[band])
    beyond = np.abs(special[np.isfinite(special) & ~inside])
    in_band = inside & (fills.sizes[band] >= floor)
    classes = np.where(in_band, fills.classes[band], ORDINARY).astype(np.uint8)
    classes[np.isnan(special)] = NOT_A_NUMBER
    classes[special == np.inf] = INFINITY
    classes[special == -np.inf] = MINUS_INFINITY
    kinds[others] = classes
    return ClassifiedValues(
        kinds,
        max(largest, float(np.max(beyond, initial=0.0))),
        float(np.min(fills.sizes[band[in_band]], initial=np.inf)),
    )


@dataclass(frozen=True, slots=True)
class PairClasses:
    """How the elements of a pair of blocks fall into classes.

    Attributes:
        excluded: Elements that are fills on both sides, or not finite on either: kept out of the sums of ordinary numbers.
        measured: Those of them that are fills of one constant, whose differences are measured by themselves.
        mismatched: Elements that are counted as a mismatch of any sort.
        nonfinite: How many hold a NaN or an infinity on either side.
        nonfinite_mismatch: Those of them whose kind differs between the sides.
        sentinel: How many hold a fill on both sides.
        sentinel_mismatch: How many hold a fill on one side, and another number on the other that is far from it.
        other_fill: How many of ``sentinel`` hold two constants that do not stand for each other.
        saturated_mismatch: How many are the largest value of a narrow type on one side, and not nearly so on the other.
        infinity_for_sentinel: How many are a negative fill on one side and -inf on the other: both mask, so this is a match.
        largest: See :class:`ClassifiedValues`; of both sides.
        least: The same.
    """

    excluded: BoolArray
    measured: BoolArray
    mismatched: BoolArray
    nonfinite: int
    nonfinite_mismatch: int
    sentinel: int
    sentinel_mismatch: int
    other_fill: int
    saturated_mismatch: int
    infinity_for_sentinel: int
    largest: FloatPair
    least: FloatPair


def classify_pairs(
    reference: Floats, target: Floats, fills: tuple[Fills, Fills], floors: FloatPair = (0.0, 0.0)
) -> PairClasses:
    """Sort a pair of blocks into classes.

    A fill on one side only is an ordinary pair: its difference enters the sums like any other. Two fills match if they are the
    same constant, or if each is the extreme value of its own type.

    Args:
        reference: Values of the reference.
        target: Values of the target, same shape.
        fills: Of the reference's and of the target's type.
        floors: Smaller constants are ordinary numbers, in the reference and in the target.
    """
    mine, theirs = classify_values(reference, fills[0], floors[0]), classify_values(target, fills[1], floors[1])
    left, right = mine.kinds, theirs.kinds
    filled, other = left >= FIRST_FILL, right >= FIRST_FILL
    sentinel, nonfinite = filled & other, _is_nonfinite(left) | _is_nonfinite(right)
    measured = sentinel & (left == right)
    own = (fills[0].ends[0], fills[1].ends[0]), (fills[0].ends[1], fills[1].ends[1])
    alike = np.any([(left == here) & (right == there) for here, there in own], axis=0)
    masked_alike = (fills[0].low[left] & (right == MINUS_INFINITY)) | ((left == MINUS_INFINITY) & fills[1].low[right])
    with np.errstate(over="ignore", invalid="ignore"):
        apart, largest = np.abs(reference - target), np.maximum(np.abs(reference), np.abs(target))
        one_sided = (filled ^ other) & ~nonfinite & ~(apart <= CLOSE * largest)
        here, there = (np.abs(side) == kind.largest for side, kind in zip((reference, target), fills, strict=True))
        far = np.where(here, apart > fills[0].slack, apart > fills[1].slack)
        saturated = ~nonfinite & ~sentinel & (here ^ there) & far  # on one side only, and the other not nearly
    other_fill, nonfinite_mismatch = sentinel & ~measured & ~alike, nonfinite & (left != right) & ~masked_alike
    return PairClasses(
        excluded=sentinel | nonfinite,
        measured=measured,
        mismatched=nonfinite_mismatch | one_sided | other_fill | saturated,
        nonfinite=int(np.count_nonzero(nonfinite)),
        nonfinite_mismatch=int(np.count_nonzero(nonfinite_mismatch)),
        sentinel=int(np.count_nonzero(sentinel)),
        sentinel_mismatch=int(np.count_nonzero(one_sided)),
        other_fill=int(np.count_nonzero(other_fill)),
        saturated_mismatch=int(np.count_nonzero(saturated)),
        infinity_for_sentinel=int(np.count_nonzero(masked_alike)),
        largest=(mine.largest, theirs.largest),
        least=(mine.least, theirs.least),
    )


def _is_nonfinite(kind: Classes) -> BoolArray:
    return (kind >= NOT_A_NUMBER) & (kind <= MINUS_INFINITY)

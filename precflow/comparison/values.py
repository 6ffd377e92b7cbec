"""Classes of values: what is an ordinary number, and what is a mask fill, an infinity or a NaN that must not enter a sum.

One masked attention score of ``finfo.min`` outweighs every other element of a norm: it hides any fault, or fails a clean pair
whose two sides fill with different constants. So such values are taken out, counted, and compared by place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.dumps.dtypes import FloatFacts

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ORDINARY, NOT_A_NUMBER, INFINITY, MINUS_INFINITY, HIGH_FILL, LOW_FILL = range(6)
_SIXTEEN_BIT_FILL = -65504.0  # finfo.min of float16, used as a constant in wider types too
_BAND = 0.02  # of the fill: what a score that was added to it can move
_COMMON_FILL = -1e8  # -1e9 and -1e30 are other customary constants
_FEWEST_DIGITS = 8  # float8 is scaled to its own maximum: large values are data there, never fills


@dataclass(frozen=True, slots=True)
class FillRange:
    """Which finite values of a type are mask fills.

    Attributes:
        high: Values from here on are fills: half the finite maximum.
        low: Values down from here are fills.
        band: A further interval of fills, empty where it lies below ``low``.
        plain_low: Every value above it, and below ``high``, is ordinary.
    """

    high: float
    low: float
    band: tuple[float, float]
    plain_low: float


def fill_range(facts: FloatFacts) -> FillRange:
    """Return the fills of a type: half the finite maximum and more in magnitude.

    In types whose range is wider than that of float16 also -1e8 and below, and what lies within 2 % of -65504. float8 has none.
    """
    if facts.digits < _FEWEST_DIGITS:
        return FillRange(np.inf, -np.inf, (-np.inf, -np.inf), -np.inf)
    half = facts.largest / 2
    if facts.largest <= -_SIXTEEN_BIT_FILL:
        return FillRange(half, -half, (-half, -half), -half)
    band = (_SIXTEEN_BIT_FILL * (1 + _BAND), _SIXTEEN_BIT_FILL * (1 - _BAND))
    return FillRange(half, _COMMON_FILL, band, band[1])


def widen(block: npt.NDArray[Any]) -> Floats:
    """Return the values as float64, exactly; bfloat16 by its bits, which is ten times faster than its cast."""
    if block.dtype.name == "bfloat16":
        bits: npt.NDArray[np.uint32] = block.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        block = bits.view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return block.astype(np.float64)


def classes(values: Floats, fills: FillRange) -> npt.NDArray[np.uint8]:
    """Return the class of each value, one of the constants of this module, as uint8."""
    kind = np.zeros(values.shape, np.uint8)
    kind[values >= fills.high] = HIGH_FILL
    kind[(values <= fills.low) | ((values >= fills.band[0]) & (values <= fills.band[1]))] = LOW_FILL
    kind[np.isnan(values)] = NOT_A_NUMBER
    kind[values == np.inf] = INFINITY
    kind[values == -np.inf] = MINUS_INFINITY
    return kind


@dataclass(frozen=True, slots=True)
class PairClasses:
    """How the elements of a pair of blocks fall into classes.

    Attributes:
        excluded: Elements that are no ordinary numbers on either side: kept out of every sum.
        nonfinite: How many hold a NaN or an infinity on either side.
        nonfinite_mismatch: Those of them whose kind differs between the sides.
        sentinel: How many hold a fill on either side, and nothing that is not finite.
        sentinel_mismatch: Those of them that are no fill, or one of the other sign, on the other side.
        infinity_for_sentinel: Places where a negative fill stands against -inf, which masks alike: a match.
        mismatched: Which elements the two mismatches are.
    """

    excluded: Mask
    nonfinite: int
    nonfinite_mismatch: int
    sentinel: int
    sentinel_mismatch: int
    infinity_for_sentinel: int
    mismatched: Mask


def classify(reference: Floats, target: Floats, fills: tuple[FillRange, FillRange], *, same_dtype: bool) -> PairClasses:
    """Sort a pair of blocks into classes.

    A fill on one side only whose partner lies within 2 % of it is an ordinary pair: the types have different ranges, the
    values agree. Two high values of one type must lie within 2 % of each other: masks are filled with low values, so these
    may be plain large numbers.

    Args:
        reference: Values of the reference.
        target: Values of the target, same shape.
        fills: Fills of the reference's and of the target's type.
        same_dtype: Both sides have one type.
    """
    left, right = classes(reference, fills[0]), classes(target, fills[1])
    largest = np.maximum(np.abs(reference), np.abs(target))
    close = np.isfinite(largest) & (np.abs(reference - target) <= _BAND * largest)
    one_sided = ((left == ORDINARY) ^ (right == ORDINARY)) & close
    left[one_sided] = right[one_sided] = ORDINARY
    excluded = (left != ORDINARY) | (right != ORDINARY)
    nonfinite = _is_nonfinite(left) | _is_nonfinite(right)
    masked_alike = ((left == LOW_FILL) & (right == MINUS_INFINITY)) | ((left == MINUS_INFINITY) & (right == LOW_FILL))
    sentinel = excluded & ~nonfinite
    apart = (left != right) | ((left == HIGH_FILL) & ~close if same_dtype else False)
    nonfinite_mismatch, sentinel_mismatch = nonfinite & (left != right) & ~masked_alike, sentinel & apart
    return PairClasses(
        excluded=excluded,
        nonfinite=int(np.count_nonzero(nonfinite)),
        nonfinite_mismatch=int(np.count_nonzero(nonfinite_mismatch)),
        sentinel=int(np.count_nonzero(sentinel)),
        sentinel_mismatch=int(np.count_nonzero(sentinel_mismatch)),
        infinity_for_sentinel=int(np.count_nonzero(masked_alike)),
        mismatched=nonfinite_mismatch | sentinel_mismatch,
    )


def _is_nonfinite(kind: npt.NDArray[np.uint8]) -> Mask:
    return (kind >= NOT_A_NUMBER) & (kind <= MINUS_INFINITY)

"""Decides from counts and checksums whether mask fills, NaN and infinities are at the same positions in two tensors.

Sums of two sides may be compared only if both exclude the same elements. Different counts prove that they do not. Equal counts
prove nothing, but equal checksums of the positions prove that they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from precflow.agent.contract import FILLS
from precflow.comparison.estimated.kept_evidence import KeptTensor
from precflow.comparison.fused.value_classes import CLOSE, FIRST_FILL, Fills, classify_values, fills_of
from precflow.dumps.dtypes import FLOATS, float_facts, real_part
from precflow.dumps.records import Statistics

FillsOfBoth = tuple[Fills | None, Fills | None]  # of the reference's and of the target's type

_STRADDLE = "one side holds mask fill values, and the other ordinary numbers that are as large"
_OTHERWISE = "the {} counted mask fill values by another definition: record it again with this version"
_SATURATED = (
    "one side holds the largest value of its type, and what was kept does not show that the other does at the same places"
)
_UNCOUNTED_FILLS = "one side leaves out the fill values of masks, and the tool of the other counts them among the numbers"
_UNCOUNTED_NAN = "both sides hold NaN, and a tool kept neither how many nor where"
_UNCOUNTED_INFINITIES = "both sides hold infinities, and a tool kept neither how many nor where"
_SEVERAL = "a side holds mask fill values of several constants, and where each of them stands was not kept"


@dataclass(frozen=True, slots=True)
class ExclusionMatch:
    """Whether two sides exclude the same elements, those that are not ordinary numbers. Counts of mismatches are lower bounds.

    Attributes:
        agree: Both sides exclude the same elements, each for the same reason.
        unknown: Why this cannot be decided; ``""`` if it can.
        nonfinite_mismatch: NaN or infinities without an equal partner on the other side.
        sentinel_mismatch: Mask fills opposite to ordinary numbers.
        other_fill: Mask fills opposite to a fill of another constant that does not mean the same.
        saturated_mismatch: Elements with the largest value of their type on one side only.
        infinity_for_sentinel: If they agree: number of -inf opposite to a negative fill, which mask in the same way.
        fill_error: If they agree: upper bound of the distance of two fills, in the tensor's own unit.
        fill_size: If they agree: smallest magnitude of a fill of the reference.
    """

    agree: bool = False
    unknown: str = ""
    nonfinite_mismatch: int = 0
    sentinel_mismatch: int = 0
    other_fill: int = 0
    saturated_mismatch: int = 0
    infinity_for_sentinel: int = 0
    fill_error: float = 0.0
    fill_size: float = 1.0


def match_exclusions(  # noqa: PLR0911  one for each thing that may differ
    left: KeptTensor, right: KeptTensor, constants: tuple[float, ...] = FILLS
) -> ExclusionMatch:
    """Compare the positions at which two tensors of one shape hold NaN, infinities or mask fills.

    Args:
        left: The reference, with statistics.
        right: The target, with statistics.
        constants: Constants that count as mask fills.
    """
    one, other = left.statistics, right.statistics
    if one is None or other is None:
        return ExclusionMatch(unknown="one side kept a content id only, and the content differs")
    if left.dtype.startswith("complex") != right.dtype.startswith("complex"):  # a complex number counts as two elements
        return ExclusionMatch(unknown="one side is complex and the other real")
    if one.rounding is not None or other.rounding is not None:
        return _match_uncounted(one, other)
    fills = _find_fills(left, constants), _find_fills(right, constants)
    for side, kept, kinds in zip(("reference", "target"), (left, right), fills, strict=True):
        if _is_counted_otherwise(kept, kinds, constants):
            return ExclusionMatch(unknown=_OTHERWISE.format(side))
    # Lower bounds. One position may hold an unmatched value of each side, so the counts of the two sides are not added.
    nonfinite = max(_count_without_partner(one, other), _count_without_partner(other, one))
    if one.high is None or other.high is None:  # a low fill also matches -inf
        apart = abs(_count_masked(one) - _count_masked(other))
    else:
        apart = max(abs(_count_low(one) - _count_low(other)), abs(one.high - other.high))
    if nonfinite:
        return ExclusionMatch(nonfinite_mismatch=nonfinite)
    straddle = _reaches(one, other, fills[0]) or _reaches(other, one, fills[1])
    if apart:
        # An ordinary number about as large as a fill may be its partner, counted as ordinary because of a small difference.
        return ExclusionMatch(unknown=_STRADDLE) if straddle else ExclusionMatch(sentinel_mismatch=apart)
    return _match_saturated(one, other, fills) or _match_by_checksum(one, other, fills, straddle=straddle)


def _match_uncounted(one: Statistics, other: Statistics) -> ExclusionMatch:
    """Compare special values where a side comes from a tool that says only whether there are such, and knows no mask fills."""
    if one.sentinel or other.sentinel:
        return ExclusionMatch(unknown=_UNCOUNTED_FILLS)
    if bool(one.nan) != bool(other.nan):
        return ExclusionMatch(nonfinite_mismatch=1)
    if one.nan:  # where one element is NaN, so are the smallest and the largest: nothing is known of the others
        return ExclusionMatch(unknown=_UNCOUNTED_NAN)
    infinities = [(bool(side.positive_infinity), bool(side.negative_infinity)) for side in (one, other)]
    if infinities[0] != infinities[1]:
        return ExclusionMatch(nonfinite_mismatch=1)
    return ExclusionMatch(unknown=_UNCOUNTED_INFINITIES) if any(infinities[0]) else ExclusionMatch(agree=True)


def _match_by_checksum(one: Statistics, other: Statistics, fills: FillsOfBoth, *, straddle: bool) -> ExclusionMatch:
    """Compare positions by their checksums, after no count showed a mismatch."""
    if not (one.sentinel or other.sentinel or one.nonfinite or other.nonfinite):
        return ExclusionMatch(agree=True)
    if one.places is None or other.places is None:
        return ExclusionMatch(unknown="both sides have NaN, Inf or mask fill values, and their places were not kept")
    if one.places != other.places:
        if straddle:
            return ExclusionMatch(unknown=_STRADDLE)
        return ExclusionMatch(sentinel_mismatch=1) if one.sentinel or other.sentinel else ExclusionMatch(nonfinite_mismatch=1)
    if one.sentinel and other.sentinel:
        return _match_constants(one, other, fills)
    return ExclusionMatch(agree=True, infinity_for_sentinel=abs(one.negative_infinity - other.negative_infinity))


def _match_constants(one: Statistics, other: Statistics, fills: FillsOfBoth) -> ExclusionMatch:
    """Compare the constants of two sides that hold mask fills at the same positions."""
    here, there = (_find_constant(side, kinds) for side, kinds in zip((one, other), fills, strict=True))
    if here is None or there is None:
        return ExclusionMatch(unknown=_SEVERAL)
    # Low fills and -inf share a code in the checksum. So if one side has more -inf, they are opposite to low fills.
    masked = abs(one.negative_infinity - other.negative_infinity)
    if here.kind == there.kind:
        error = here.spread + there.spread + abs(here.value - there.value)
        return ExclusionMatch(
            agree=True, infinity_for_sentinel=masked, fill_error=error, fill_size=abs(here.value) - here.spread
        )
    if (here.end, there.end) in {("low", "low"), ("high", "high")}:  # such as float16's -65504 for float32's -3.4e38
        return ExclusionMatch(agree=True, infinity_for_sentinel=masked)
    # Of the masked positions, equal on both sides, at least this many have a fill on both: 6 and 7 of 10 overlap in 3.
    certain = one.sentinel + other.sentinel - max(_count_masked(one), _count_masked(other))
    return ExclusionMatch(other_fill=certain) if certain > 0 else ExclusionMatch(unknown=_SEVERAL)


class _FillConstant(NamedTuple):
    """The one constant of all mask fills of a side.

    Attributes:
        value: The constant.
        kind: Its class of values, which belongs to its place in the list of constants.
        spread: Largest distance of a fill from it.
        end: ``low`` or ``high`` if it is the smallest or largest value of the element type, else ``""``.
    """

    value: float
    kind: int
    spread: float
    end: str


def _find_constant(side: Statistics, fills: Fills | None) -> _FillConstant | None:
    """Return the one constant of a side's mask fills; ``None`` if there are several constants."""
    if fills is None or side.fill is None or side.spread is None:
        return None
    kind = int(classify_values(np.array([side.fill], np.float64), fills).kinds[0])
    if kind < FIRST_FILL:
        return None
    return _FillConstant(side.fill, kind, side.spread, dict(zip(fills.ends, ("low", "high"), strict=True)).get(kind, ""))


def _count_masked(side: Statistics) -> int:
    """Return the number of mask fills and -inf, which is a mask value too."""
    return side.sentinel + side.negative_infinity


def _is_counted_otherwise(side: KeptTensor, fills: Fills | None, constants: tuple[float, ...]) -> bool:
    """Tell whether a side counted mask fills by another definition, so that its counts may be different by ours."""
    known = side.statistics
    if side.fills is not None and sorted(side.fills) == sorted(constants):
        return False
    # Without fills, and with all values smaller than any fill, every definition counts the same.
    if fills is None or known is None or known.sentinel:
        return True
    return known.minimum is not None and known.maximum is not None and max(-known.minimum, known.maximum) >= fills.plain


def _match_saturated(one: Statistics, other: Statistics, fills: FillsOfBoth) -> ExclusionMatch | None:
    """Return what follows from elements with the largest value of their type that are not fills; ``None`` if there are none."""
    pairs = ((one, other, fills[0]), (other, one, fills[1]))
    saturated = [(opposite, kinds) for side, opposite, kinds in pairs if kinds and _find_largest(side) == kinds.largest]
    if not saturated:
        return None
    all_ordinary = not (_count_masked(one) or _count_masked(other) or one.nonfinite or other.nonfinite)
    if all_ordinary and any(_find_largest(opposite) < kinds.largest - kinds.slack for opposite, kinds in saturated):
        return ExclusionMatch(saturated_mismatch=1)
    return ExclusionMatch(unknown=_SATURATED)


def _find_largest(side: Statistics) -> float:
    return max(-(side.minimum or 0.0), side.maximum or 0.0)


def _count_without_partner(side: Statistics, other: Statistics) -> int:
    """Return how many more NaN and infinities one side has than the other, kind by kind; -inf also matches a negative fill."""
    low = other.sentinel - (other.high or 0)
    kinds = ((side.nan, other.nan), (side.positive_infinity, other.positive_infinity))
    return sum(max(0, here - there) for here, there in (*kinds, (side.negative_infinity, other.negative_infinity + low)))


def _count_low(side: Statistics) -> int:
    return side.sentinel - (side.high or 0) + side.negative_infinity


def _reaches(side: Statistics, other: Statistics, fills: Fills | None) -> bool:
    """Tell whether the other side may have an ordinary value about as large as a fill of this side."""
    if not side.sentinel or other.minimum is None or other.maximum is None:
        return False
    if side.fill is None or side.spread is None:
        return fills is None or _find_largest(other) >= (1 - 2 * CLOSE) * fills.plain
    nearest = (1 - 2 * CLOSE) * (abs(side.fill) - side.spread)
    return bool(-other.minimum >= nearest if side.fill < 0 else other.maximum >= nearest)


def _find_fills(side: KeptTensor, constants: tuple[float, ...]) -> Fills | None:
    name = real_part(side.dtype)
    return fills_of(float_facts(name), constants) if name in FLOATS else None

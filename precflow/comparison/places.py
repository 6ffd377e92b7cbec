"""Whether the fills, NaN and infinities of two tensors stand at the same places, told from counts and checksums.

Sums of two sides may be compared only where both leave out the same elements. Counts that differ prove a mismatch, equal ones
prove nothing; the checksum of their places does.
"""

from __future__ import annotations

from dataclasses import dataclass

from precflow.comparison.kept import Kept
from precflow.comparison.values import FillRange, fill_range
from precflow.dumps.dtypes import FLOATS, float_facts, real_part
from precflow.dumps.records import Statistics

_NEAR = 0.97  # a fill and a value so near to it count as an ordinary pair


@dataclass(frozen=True, slots=True)
class Places:
    """What is known of the elements that are no ordinary numbers.

    Attributes:
        agree: Both sides leave out the same elements, each for the same reason.
        unknown: Why that cannot be told, ``""`` where it can.
        nonfinite_mismatch: NaN or infinities without an equal partner: at least so many.
        sentinel_mismatch: Fills without an equal partner: at least so many.
        infinity_for_sentinel: -inf against a negative fill, where they agree.
    """

    agree: bool = False
    unknown: str = ""
    nonfinite_mismatch: int = 0
    sentinel_mismatch: int = 0
    infinity_for_sentinel: int = 0


def places(left: Kept, right: Kept) -> Places:
    """Compare where two tensors of one shape hold something else than ordinary numbers.

    Args:
        left: The reference, with statistics.
        right: The target, with statistics.
    """
    one, other = left.statistics, right.statistics
    if one is None or other is None:
        return Places(unknown="one side kept a content id only, and the content differs")
    if left.dtype.startswith("complex") != right.dtype.startswith("complex"):
        return Places(unknown="one side is complex and the other real")
    nonfinite = _nonfinite_apart(one, other)
    if nonfinite:
        return Places(nonfinite_mismatch=nonfinite)
    straddle = _may_straddle(left, right)
    apart = _fills_apart(one, other)
    if apart:
        return Places(unknown=_STRADDLE) if straddle else Places(sentinel_mismatch=apart)
    if not (one.sentinel or other.sentinel or one.nonfinite or other.nonfinite):
        return Places(agree=True)
    return _by_checksum(left, right, one, other, straddle=straddle)


def _by_checksum(left: Kept, right: Kept, one: Statistics, other: Statistics, *, straddle: bool) -> Places:
    """Compare places where both sides have the same numbers of everything."""
    if one.places is None or other.places is None:
        return Places(unknown="both sides have NaN, Inf or mask fill values, and their places were not kept")
    if one.places != other.places:
        if straddle:
            return Places(unknown=_STRADDLE)
        return Places(sentinel_mismatch=1) if one.sentinel or other.sentinel else Places(nonfinite_mismatch=1)
    if left.dtype == right.dtype and (one.high is None or one.high):
        return Places(unknown="both sides hold values beyond half of their type's range, which enter no sum")
    return Places(agree=True, infinity_for_sentinel=abs(one.negative_infinity - other.negative_infinity))


_STRADDLE = "one side holds values that are fills in its type, and the other may hold the same as ordinary numbers"


def _nonfinite_apart(one: Statistics, other: Statistics) -> int:
    """Return at how many places a NaN or infinity cannot have an equal partner; one place may take one of each side."""
    return max(_without_partner(one, other), _without_partner(other, one))


def _without_partner(side: Statistics, other: Statistics) -> int:
    """Return how many NaN and infinities of a side are more than the other has; -inf may stand against a negative fill."""
    low = other.sentinel - (other.high or 0)
    kinds = ((side.nan, other.nan), (side.positive_infinity, other.positive_infinity))
    return sum(max(0, here - there) for here, there in (*kinds, (side.negative_infinity, other.negative_infinity + low)))


def _fills_apart(one: Statistics, other: Statistics) -> int:
    """Return how many fills cannot have a partner; a negative one may stand against -inf."""
    if one.high is None or other.high is None:
        return abs(one.sentinel + one.negative_infinity - other.sentinel - other.negative_infinity)
    return max(abs(_low(one) - _low(other)), abs(one.high - other.high))


def _low(side: Statistics) -> int:
    return side.sentinel - (side.high or 0) + side.negative_infinity


def _may_straddle(left: Kept, right: Kept) -> bool:
    """Tell whether an ordinary value of one side lies so near to the other type's fills that it may agree with one."""
    return _reaches(left, _fills(right)) or _reaches(right, _fills(left))


def _reaches(side: Kept, fills: FillRange | None) -> bool:
    known = side.statistics
    if fills is None or known is None:
        return True
    if known.minimum is None or known.maximum is None:
        return False
    return known.minimum <= _NEAR * fills.plain_low or known.maximum >= _NEAR * fills.high


def _fills(side: Kept) -> FillRange | None:
    name = real_part(side.dtype)
    return fill_range(float_facts(name)) if name in FLOATS else None

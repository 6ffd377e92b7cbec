"""What one pass over a pair of tensors leaves: a small value from which every metric follows, and which can be merged.

Blocks, threads and resumed runs agree, because a summary of a whole is the sum of the summaries of its parts, and memory is
bounded whatever the size of the tensors. ``summarize.py`` makes it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from precflow.comparison.rows import RowNorms
from precflow.comparison.scaled import Scaled

SUMMARY_VERSION = 3  # 3: whether bits differ, no longer how many


def _counts_added(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


_ADDED = {"merge": operator.add}
_LARGEST = {"merge": max}
_EITHER = {"merge": operator.or_}
_EACH_ADDED = {"merge": _counts_added}


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums, extremes and counts over a part of a pair of tensors; y is the reference, x the target, d = x - y.

    Sums and maxima run over pairs that are neither sentinel nor nonfinite ("compared"); those that divide by y, and units
    in the last place, leave out pairs with a *small* reference too (0, or subnormal in the reference's type). All in float64.

    Attributes:
        inexact: Floating point or complex: sums have a meaning. Integers have counts, ``difference_*`` only.
        elements: Elements read; a complex number counts as two.
        small: Compared pairs with a small reference.
        small_mismatch: Those of them whose target is not small.
        sentinel: Pairs with a mask fill on either side.
        nonfinite: Pairs with NaN or an infinity on either side.
        sentinel_mismatch: Fills without an equal partner.
        nonfinite_mismatch: NaN or infinities without an equal partner.
        infinity_for_sentinel: -inf against a negative fill: a match.
        unequal: Some element's bits differ, or the types do.
        difference_sum: Sum of |d|.
        difference_square: Sum of d^2.
        difference_max: Largest |d|; exact integer for integers.
        reference_sum: Sum of |y|.
        reference_square: Sum of y^2.
        target_sum: Sum of x; means nothing where ``negative``.
        target_square: Sum of x^2.
        product: Sum of x y.
        relative_sum: Sum of |d| / |y|.
        relative_max: Largest |d| / |y|.
        offset_relative_sum: Sum of |d| / (|y| + 1e-7).
        offset_relative_max: Largest |d| / (|y| + 1e-7).
        within_one_thousandth: Compared pairs with |d| <= 0.001 |y|; small against small counts as within.
        within_five_thousandths: The same for 0.005.
        close: Type name -> compared pairs within that type's ``assert_close`` tolerances.
        ulp_sum: Sum of distances in units in the last place.
        ulp_max: Largest.
        divergence: Sum of y log(y / x) - y + x.
        negative: Some compared value is negative, so ``divergence`` means nothing.
        rows: Norms of rows.
    """

    inexact: bool = field(default=False, metadata=_EITHER)
    elements: int = field(default=0, metadata=_ADDED)
    small: int = field(default=0, metadata=_ADDED)
    small_mismatch: int = field(default=0, metadata=_ADDED)
    sentinel: int = field(default=0, metadata=_ADDED)
    nonfinite: int = field(default=0, metadata=_ADDED)
    sentinel_mismatch: int = field(default=0, metadata=_ADDED)
    nonfinite_mismatch: int = field(default=0, metadata=_ADDED)
    infinity_for_sentinel: int = field(default=0, metadata=_ADDED)
    unequal: bool = field(default=False, metadata=_EITHER)
    difference_sum: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    difference_square: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    difference_max: float = field(default=0.0, metadata=_LARGEST)
    reference_sum: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    reference_square: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    target_sum: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    target_square: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    product: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    relative_sum: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    relative_max: float = field(default=0.0, metadata=_LARGEST)
    offset_relative_sum: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    offset_relative_max: float = field(default=0.0, metadata=_LARGEST)
    within_one_thousandth: int = field(default=0, metadata=_ADDED)
    within_five_thousandths: int = field(default=0, metadata=_ADDED)
    close: Mapping[str, int] = field(default_factory=dict, metadata=_EACH_ADDED)
    ulp_sum: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    ulp_max: int = field(default=0, metadata=_LARGEST)
    divergence: Scaled = field(default_factory=Scaled, metadata=_ADDED)
    negative: bool = field(default=False, metadata=_EITHER)
    rows: RowNorms = field(default_factory=RowNorms, metadata=_ADDED)

    @property
    def compared(self) -> int:
        """Pairs that are neither sentinel nor nonfinite."""
        return self.elements - self.sentinel - self.nonfinite

    @property
    def ordinary(self) -> int:
        """Compared pairs whose reference is not small."""
        return self.compared - self.small

    def __add__(self, other: Summary) -> Summary:
        """Merge the summaries of two parts of one pair; associative up to the rounding of float64."""
        merged = {
            part.name: part.metadata["merge"](getattr(self, part.name), getattr(other, part.name)) for part in fields(Summary)
        }
        return Summary(**merged)


def merge(parts: Sequence[Summary]) -> Summary:
    """Merge any number of summaries, neighbours first, so that sums round little and row norms are copied few times."""
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [*(first + second for first, second in zip(parts[::2], parts[1::2], strict=False)), *odd]
    return parts[0] if parts else Summary()

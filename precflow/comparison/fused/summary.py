"""What one pass over a pair of tensors gives: a small value from which every metric follows, and which can be added up.

The summary of a whole is the sum of the summaries of its parts. So blocks, threads and resumed runs agree, and memory is
bounded whatever the size of the tensors. ``summarize.py`` makes it. It is a struct of msgspec and not a frozen dataclass
because making one with thirty attributes takes a tenth of the time, and every pair has one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from precflow.agent.contract import FILLS_FAR
from precflow.comparison.fused.row_norms import RowNorms
from precflow.comparison.fused.scaled_float import ScaledFloat

SUMMARY_VERSION = 6  # 5: measures have the peak of the reference. 6: and its largest row; zero rows are not in the median


class Summary(msgspec.Struct, frozen=True, gc=False):
    """Sums, extremes and counts over a part of a pair of tensors; y is the reference, x the target, d = x - y.

    Sums and maxima run over pairs that are neither sentinel nor nonfinite ("compared"); those that divide by y, and units
    in the last place, leave out pairs with a *small* reference too (0, or subnormal in the reference's type). All in float64.
    Whether constants are far enough from everything else to be fills shows at the end only: see ``settled``.

    Attributes:
        inexact: Floating point or complex: sums have a meaning. Integers have counts, ``difference_*`` only.
        elements: Elements read; a complex number counts as two.
        small: Compared pairs with a small reference.
        small_mismatch: Those of them whose target is not small.
        sentinel: Pairs with a mask fill on both sides.
        nonfinite: Pairs with NaN or an infinity on either side.
        sentinel_mismatch: Compared pairs with a fill on one side and a number far from it on the other.
        other_fill: Sentinel pairs of two constants that do not stand for each other.
        saturated_mismatch: Pairs of which one side only has the largest value of its narrow type, the other not nearly.
        nonfinite_mismatch: NaN or infinities without an equal partner.
        infinity_for_sentinel: -inf against a negative fill: a match.
        unequal: The bits of some element differ, or the types do.
        difference_sum: Sum of |d|.
        difference_square: Sum of d^2.
        difference_max: Largest |d|; exact integer for integers.
        reference_sum: Sum of |y|.
        reference_square: Sum of y^2.
        target_sum: Sum of x; meaningless if ``negative``.
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
        negative: Some compared value is negative, so ``divergence`` is meaningless.
        rows: Norms of rows.
        largest_reference: Largest magnitude of a finite value of the reference that is near no constant.
        largest_target: The same of the target.
        least_fill_reference: Smallest constant, by magnitude, that was taken for a fill in the reference; infinite for none.
        least_fill_target: The same of the target.
        fills: The sentinel pairs of one constant, measured like compared ones; ``None`` if there are none. Rows without
            fills have a norm of 0 in it, or none.
    """

    inexact: bool = False
    elements: int = 0
    small: int = 0
    small_mismatch: int = 0
    sentinel: int = 0
    nonfinite: int = 0
    sentinel_mismatch: int = 0
    other_fill: int = 0
    saturated_mismatch: int = 0
    nonfinite_mismatch: int = 0
    infinity_for_sentinel: int = 0
    unequal: bool = False
    difference_sum: ScaledFloat = ScaledFloat()
    difference_square: ScaledFloat = ScaledFloat()
    difference_max: float = 0.0
    reference_sum: ScaledFloat = ScaledFloat()
    reference_square: ScaledFloat = ScaledFloat()
    target_sum: ScaledFloat = ScaledFloat()
    target_square: ScaledFloat = ScaledFloat()
    product: ScaledFloat = ScaledFloat()
    relative_sum: ScaledFloat = ScaledFloat()
    relative_max: float = 0.0
    offset_relative_sum: ScaledFloat = ScaledFloat()
    offset_relative_max: float = 0.0
    within_one_thousandth: int = 0
    within_five_thousandths: int = 0
    close: Mapping[str, int] = {}
    ulp_sum: ScaledFloat = ScaledFloat()
    ulp_max: int = 0
    divergence: ScaledFloat = ScaledFloat()
    negative: bool = False
    rows: RowNorms = msgspec.field(default_factory=RowNorms)
    largest_reference: float = 0.0
    largest_target: float = 0.0
    least_fill_reference: float = math.inf
    least_fill_target: float = math.inf
    fills: Summary | None = None

    @property
    def floors(self) -> tuple[float, float]:
        """Magnitudes below which a constant is an ordinary number, in the reference and in the target, by what was read."""
        return FILLS_FAR * self.largest_reference, FILLS_FAR * self.largest_target

    @property
    def settled(self) -> bool:
        """All that was taken for fills is far from everything else; otherwise it has to be read again, with ``floors``."""
        return self.least_fill_reference >= self.floors[0] and self.least_fill_target >= self.floors[1]

    @property
    def has_fills(self) -> bool:
        """Something was taken for a fill on either side."""
        return min(self.least_fill_reference, self.least_fill_target) < math.inf

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
        return Summary(**{name: merged(getattr(self, name), getattr(other, name)) for name, merged in _MERGE.items()})


_MERGE: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(Summary.__struct_fields__, operator.add),
    **dict.fromkeys(("inexact", "unequal", "negative"), operator.or_),
    **dict.fromkeys(("difference_max", "relative_max", "offset_relative_max", "ulp_max"), max),
    **dict.fromkeys(("largest_reference", "largest_target"), max),
    **dict.fromkeys(("least_fill_reference", "least_fill_target"), min),
    "fills": lambda first, second: first + second if first and second else first or second,
    "close": lambda first, second: {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}},
}


def merge(parts: Sequence[Summary]) -> Summary:
    """Merge any number of summaries, neighbours first, so that sums round little and row norms are copied few times."""
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]  # the last one, if their number is odd
        parts = [*(first + second for first, second in zip(parts[::2], parts[1::2], strict=False)), *odd]
    return parts[0] if parts else Summary()

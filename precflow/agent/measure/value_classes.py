"""Which values are ordinary numbers: neither NaN, nor infinite, nor mask fills. The judge classifies them in the same way.

One masked attention score of ``finfo.min`` outweighs every other element of a sum, so such values are counted separately and
left out of sums. ``contract.py`` defines a fill: a known constant, far from everything else in its tensor.
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.contract import FILLS, FILLS_FAR, Band, fill_bands

_INFINITE = float("inf")


class Fills(NamedTuple):
    """Which values of an element type may be mask fills.

    Attributes:
        plain: Every value of a smaller magnitude is ordinary; infinite if the type has no fills.
        bands: The range around each constant, from low to high.
        largest: Largest finite value of the type.
    """

    plain: float
    bands: Tuple[Band, ...]
    largest: float

    def are_ordinary(self, low: float, high: float) -> bool:
        """Tell from the extremes alone whether all values of a tensor are ordinary; false if it has NaN or infinities.

        If the value of the largest magnitude lies in no band, no constant can be far from everything else in the tensor, so
        even values inside a band are ordinary.
        """
        if -self.plain < low and high < self.plain:  # false for NaN: it compares false with everything
            return True
        end = low if -low >= high else high
        return abs(end) <= self.largest and self.band_of(end) is None

    def band_of(self, value: float) -> Optional[Band]:
        """Return the band that a value lies in, or ``None``."""
        return next((band for band in self.bands if band.low <= value <= band.high), None)


_known: Dict[torch.dtype, Fills] = {}
_constants: List[float] = list(FILLS)


def add_constants(more: Sequence[float]) -> None:
    """Add the constants that the recipe names to the known fills, for the rest of this process."""
    _constants[:] = [*FILLS, *more]
    _known.clear()


def constants() -> Tuple[float, ...]:
    """Return the constants that count as mask fills in this process."""
    return tuple(_constants)


def fills_of(dtype: torch.dtype) -> Fills:
    """Return the fills of a floating point type; float8 has no bands."""
    if dtype not in _known:
        facts = torch.finfo(dtype)
        largest = float(facts.max)
        bands = fill_bands(1 - round(math.log2(facts.eps)), largest, _constants)  # eps is 2^(1 - bits of the significand)
        # Magnitudes below every band are ordinary without a look at the bands, and nearly all tensors end there.
        nearest = [min(abs(band.low), abs(band.high)) for band in bands]
        _known[dtype] = Fills(min([*nearest, _INFINITE]), bands, largest)
    return _known[dtype]


class Cleaning(NamedTuple):
    """Prepares values for summing: values that are not ordinary become 0, very large or small ones are scaled.

    Attributes:
        least: Smallest ordinary value.
        most: Largest ordinary value; fills are larger in magnitude than all ordinary values, so they lie outside this range.
        exponent: Values are divided by 2 to this power, so that their squares neither overflow nor vanish.
    """

    least: float
    most: float
    exponent: int = 0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 or float64 values with 0 for every value that is not ordinary; does not wait for the device."""
        finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        kept = finite.mul_(indicator(torch.ge, finite, self.least).mul_(indicator(torch.le, finite, self.most)))
        if self.exponent:
            half = -self.exponent // 2  # the whole factor, such as 2^140, may be out of the type's range; both halves are not
            kept.mul_(2.0**half).mul_(2.0 ** (-self.exponent - half))
        return kept


class Indicators(NamedTuple):
    """For each kind a tensor with 1 for every value of that kind and 0 elsewhere; then the values themselves.

    All have the shape and dtype of the values.

    Attributes:
        nan: Not a number.
        positive_infinity: +inf.
        negative_infinity: -inf.
        high: A fill of a positive constant.
        low: A fill of a negative constant.
        ordinary: The values, with 0 for every value that is not ordinary.
        finite: The values, with 0 for NaN and infinities.
    """

    nan: torch.Tensor
    positive_infinity: torch.Tensor
    negative_infinity: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor
    ordinary: torch.Tensor
    finite: torch.Tensor


def sort_into_kinds(values: torch.Tensor, bands: Sequence[Band]) -> Indicators:
    """Sort float32 or float64 values into kinds; does not wait for the device.

    Args:
        values: Any values.
        bands: The bands of the constants that are fills in this tensor, from :func:`bands_in`.
    """
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    high, low = (_mark_inside(finite, [band for band in bands if (band.constant > 0) == upper]) for upper in (True, False))
    return Indicators(
        indicator(torch.ne, values, values),
        indicator(torch.eq, values, _INFINITE),
        indicator(torch.eq, values, -_INFINITE),
        high,
        low,
        finite * (1 - high - low),
        finite,
    )


def bands_in(pieces: Sequence[torch.Tensor], fills: Fills) -> List[Band]:
    """Return the bands of the constants that are fills in a tensor: those far from all values outside of the bands.

    Finds the value of the largest magnitude. If it lies in a band, the values of that band are ignored from then on, and the
    search is repeated, until the largest remaining value lies in no band. Waits for the device once per round, mostly twice.

    Args:
        pieces: The values in pieces, float32 or float64.
        fills: The fills of the original element type.
    """
    candidates: List[Band] = []
    while True:
        ends: List[torch.Tensor] = []
        for piece in pieces:
            finite = torch.nan_to_num(piece, nan=0.0, posinf=0.0, neginf=0.0)
            if candidates:
                finite.mul_(_mark_inside(finite, candidates).neg_().add_(1))
            ends.append(torch.stack([finite.amin(), finite.amax()]))
        table = torch.stack(ends)
        low, high = table[:, 0].min().item(), table[:, 1].max().item()
        band = fills.band_of(low if -low >= high else high)
        if band is None:
            return [candidate for candidate in candidates if abs(candidate.constant) >= FILLS_FAR * max(-low, high)]
        candidates.append(band)


def _mark_inside(finite: torch.Tensor, bands: Sequence[Band]) -> torch.Tensor:
    """Return 1 for every value in one of the bands and 0 elsewhere. Products and sums of 0 and 1 stand for `and` and `or`."""
    marks = torch.zeros_like(finite)
    for band in bands:
        marks.add_(indicator(torch.ge, finite, band.low).mul_(indicator(torch.le, finite, band.high)))
    return marks


def indicator(compare: object, values: torch.Tensor, other: object) -> torch.Tensor:
    """Return 1 where a comparison holds and 0 elsewhere, in the dtype of the values."""
    # On the CPU write the result straight into a float tensor: a bool tensor converted afterwards is five times slower.
    if values.device.type == "cpu":
        return compare(values, other, out=torch.empty_like(values))  # type: ignore[operator,no-any-return]
    return compare(values, other).to(values.dtype)  # type: ignore[operator,no-any-return]

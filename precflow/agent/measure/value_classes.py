"""Which values are ordinary numbers: neither NaN, nor infinite, nor the fill of a mask. The judge sorts them alike.

One masked attention score of ``finfo.min`` outweighs every other element of a sum, so such values are counted and left out.
``contract.py`` says what a fill is: a known constant, far from everything else in its tensor.
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.contract import FILLS, FILLS_FAR, Band, fill_bands

_INFINITE = float("inf")


class Fills(NamedTuple):
    """Which values of a type may be mask fills.

    Attributes:
        plain: Every value of a smaller magnitude is ordinary.
        bands: Around each constant, from low to high.
        largest: Largest finite value of the type.
    """

    plain: float
    bands: Tuple[Band, ...]
    largest: float

    def are_ordinary(self, low: float, high: float) -> bool:
        """Tell from the extremes of values whether all are ordinary: none is near a constant, or the largest is near none."""
        if -self.plain < low and high < self.plain:  # NaN is no number's neighbour
            return True
        end = low if -low >= high else high
        return abs(end) <= self.largest and self.band_of(end) is None

    def band_of(self, value: float) -> Optional[Band]:
        """Return the band that a value lies in."""
        return next((band for band in self.bands if band.low <= value <= band.high), None)


_known: Dict[torch.dtype, Fills] = {}
_constants: List[float] = list(FILLS)


def know(more: Sequence[float]) -> None:
    """Take further constants for fills, from now on in this process: those of the recipe that is run."""
    _constants[:] = [*FILLS, *more]
    _known.clear()


def constants() -> Tuple[float, ...]:
    """Return the constants that masks are known to be made of."""
    return tuple(_constants)


def fills_of(dtype: torch.dtype) -> Fills:
    """Return the fills of a floating point type; float8 has none."""
    if dtype not in _known:
        facts = torch.finfo(dtype)
        largest = float(facts.max)
        bands = fill_bands(1 - round(math.log2(facts.eps)), largest, _constants)
        nearest = [min(abs(band.low), abs(band.high)) for band in bands]
        _known[dtype] = Fills(min([*nearest, _INFINITE]), bands, largest)
    return _known[dtype]


class Cleaning(NamedTuple):
    """What is done to the values of a tensor that has not only ordinary ones of ordinary size.

    Attributes:
        least: Smallest ordinary value.
        most: Largest ordinary value: fills are larger than all others in magnitude, so they lie outside of the two.
        exponent: Values are divided by 2 to this power, so that their squares can be added up.
    """

    least: float
    most: float
    exponent: int = 0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 or float64 values with 0 in place of all that are not ordinary; waits for nothing."""
        finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        kept = finite.mul_(indicator(torch.ge, finite, self.least).mul_(indicator(torch.le, finite, self.most)))
        if self.exponent:
            half = -self.exponent // 2  # the whole factor may be out of range where both halves are not
            kept.mul_(2.0**half).mul_(2.0 ** (-self.exponent - half))
        return kept


class Indicators(NamedTuple):
    """For each value 1 where it is of a kind and 0 elsewhere, in the type of the values; and the values themselves.

    Attributes:
        nan: Not a number.
        positive_infinity: +inf.
        negative_infinity: -inf.
        high: A fill at the upper end.
        low: A fill at the lower end.
        ordinary: The values, with 0 in place of all that are not ordinary.
        finite: The values, with 0 in place of what is not finite.
    """

    nan: torch.Tensor
    positive_infinity: torch.Tensor
    negative_infinity: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor
    ordinary: torch.Tensor
    finite: torch.Tensor


def sort(values: torch.Tensor, bands: Sequence[Band]) -> Indicators:
    """Sort float32 or float64 values into kinds; waits for nothing.

    Args:
        values: Any.
        bands: Of the constants that are fills in their tensor: :func:`bands_in`.
    """
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    high, low = (_inside(finite, [band for band in bands if (band.constant > 0) == upper]) for upper in (True, False))
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
    """Return the bands of the constants that are fills in a tensor: far from all its values that lie in no band.

    The value of the largest magnitude is looked at. As long as it lies in a band, that band is left out, and the next largest
    looked at; what is left then is the largest that lies in none. Waits for the device, mostly twice.

    Args:
        pieces: float32 or float64 values, piece after piece.
        fills: Of the type that they had first.
    """
    found: List[Band] = []
    while True:
        ends = torch.stack([_ends_without(piece, found) for piece in pieces])
        low, high = ends[:, 0].min().item(), ends[:, 1].max().item()
        band = fills.band_of(low if -low >= high else high)
        if band is None:
            return [each for each in found if abs(each.constant) >= FILLS_FAR * max(-low, high)]
        found.append(band)


def _ends_without(values: torch.Tensor, bands: Sequence[Band]) -> torch.Tensor:
    """Return the extremes of the values with 0 in place of what is not finite and of what lies in a band."""
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    if bands:
        finite.mul_(_inside(finite, bands).neg_().add_(1))
    return torch.stack([finite.amin(), finite.amax()])


def _inside(finite: torch.Tensor, bands: Sequence[Band]) -> torch.Tensor:
    found = torch.zeros_like(finite)
    for band in bands:
        found.add_(indicator(torch.ge, finite, band.low).mul_(indicator(torch.le, finite, band.high)))
    return found


def indicator(compare: object, values: torch.Tensor, other: object) -> torch.Tensor:
    """Return 1 where a comparison holds and 0 elsewhere; on the CPU not by way of bool, which is five times slower."""
    if values.device.type == "cpu":
        return compare(values, other, out=torch.empty_like(values))  # type: ignore[operator,no-any-return]
    return compare(values, other).to(values.dtype)  # type: ignore[operator,no-any-return]

"""Which values are ordinary numbers: neither NaN, nor infinite, nor the fill of a mask. The judge sorts them alike.

One masked attention score of ``finfo.min`` outweighs every other element of a sum, so such values are counted and left out.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

import torch

_SIXTEEN_BIT_FILL = -65504.0  # finfo.min of float16, used as a constant in wider types too
_BAND = 0.02  # of the fill: what a score that was added to it can move
_COMMON_FILL = -1e8  # -1e9 and -1e30 are other customary constants
_COARSEST = 2.0**-7  # float8 is scaled to its own maximum: large values are data there, never fills
_INFINITE = float("inf")


class Fills(NamedTuple):
    """Which finite values of a type are mask fills.

    Attributes:
        high: Values from here on are fills.
        low: Values down from here are fills.
        band: A further interval of fills, where the type has one.
        plain_low: Every value above it, and below ``high``, is ordinary.
        largest: Largest finite value of the type.
    """

    high: float
    low: float
    band: Optional[Tuple[float, float]]
    plain_low: float
    largest: float


_known: Dict[torch.dtype, Fills] = {}


def fills_of(dtype: torch.dtype) -> Fills:
    """Return the fills of a floating point type.

    Half the finite maximum and more in magnitude; in types whose range is wider than that of float16 also -1e8 and below, and
    what lies within 2 % of -65504. float8 has none.
    """
    if dtype not in _known:
        _known[dtype] = _fills_of(dtype)
    return _known[dtype]


def _fills_of(dtype: torch.dtype) -> Fills:
    facts = torch.finfo(dtype)
    largest = float(facts.max)
    if facts.eps > _COARSEST:
        return Fills(_INFINITE, -_INFINITE, None, -_INFINITE, largest)
    half = largest / 2
    if largest <= -_SIXTEEN_BIT_FILL:
        return Fills(half, -half, None, -half, largest)
    band = (_SIXTEEN_BIT_FILL * (1 + _BAND), _SIXTEEN_BIT_FILL * (1 - _BAND))
    return Fills(half, _COMMON_FILL, band, band[1], largest)


class Cleaning(NamedTuple):
    """What is done to the values of a tensor that has not only ordinary ones of ordinary size.

    Attributes:
        fills: The fills of its type: they, NaN and infinities become 0.
        exponent: Values are divided by 2 to this power, so that their squares can be added up.
    """

    fills: Fills
    exponent: int = 0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 or float64 values cleaned; waits for nothing."""
        kept = ordinary(values, self.fills)
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


def sort(values: torch.Tensor, fills: Fills) -> Indicators:
    """Sort float32 or float64 values into kinds; waits for nothing."""
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    high, low = _fill_indicators(finite, fills)
    return Indicators(
        indicator(torch.ne, values, values),
        indicator(torch.eq, values, _INFINITE),
        indicator(torch.eq, values, -_INFINITE),
        high,
        low,
        finite * (1 - high - low),
        finite,
    )


def ordinary(values: torch.Tensor, fills: Fills) -> torch.Tensor:
    """Return float32 or float64 values with 0 in place of all that are not ordinary; waits for nothing."""
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    high, low = _fill_indicators(finite, fills)
    return finite.mul_(low.add_(high).neg_().add_(1))


def _fill_indicators(finite: torch.Tensor, fills: Fills) -> Tuple[torch.Tensor, torch.Tensor]:
    high, low = indicator(torch.ge, finite, fills.high), indicator(torch.le, finite, fills.low)
    if fills.band is not None:
        low = low + indicator(torch.ge, finite, fills.band[0]) * indicator(torch.le, finite, fills.band[1])
    return high, low


def indicator(compare: object, values: torch.Tensor, other: object) -> torch.Tensor:
    """Return 1 where a comparison holds and 0 elsewhere; on the CPU not by way of bool, which is five times slower."""
    if values.device.type == "cpu":
        return compare(values, other, out=torch.empty_like(values))  # type: ignore[operator,no-any-return]
    return compare(values, other).to(values.dtype)  # type: ignore[operator,no-any-return]

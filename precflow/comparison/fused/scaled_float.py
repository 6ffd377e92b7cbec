"""Sums that neither overflow nor vanish: a float times a power of two of any size.

The squares of float64 values beyond 1e154 are infinite and those below 1e-162 are 0, so a relative L2 of such tensors would
be NaN, infinite or 0. Sums of squares are therefore taken of values that are scaled by a power of two, which is exact, and
the exponent is kept beside them.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class ScaledFloat(NamedTuple):
    """The number ``mantissa * 2 ** exponent``; the mantissa is 0, not finite, or of magnitude 0.5 to 1.

    Make it with :meth:`of`, which normalises the mantissa.
    """

    mantissa: float = 0.0
    exponent: int = 0

    @classmethod
    def of(cls, value: float, exponent: int = 0) -> ScaledFloat:
        """Return ``value * 2 ** exponent``, exactly.

        >>> ScaledFloat.of(6.0)
        ScaledFloat(mantissa=0.75, exponent=3)
        """
        mantissa, shift = math.frexp(value)
        return cls(mantissa, shift + exponent if mantissa and math.isfinite(mantissa) else 0)

    def __add__(self, other: ScaledFloat) -> ScaledFloat:  # type: ignore[override]  # a sum of numbers, not of tuples
        if not self.mantissa:
            return other
        if not other.mantissa:
            return self
        exponent = max(self.exponent, other.exponent)
        return ScaledFloat.of(
            _times(self.mantissa, self.exponent - exponent) + _times(other.mantissa, other.exponent - exponent), exponent
        )

    def __float__(self) -> float:
        """Return it as a float: infinite above the range of float64, 0 far below it."""
        return _times(self.mantissa, self.exponent)


def divide(numerator: ScaledFloat, denominator: ScaledFloat, *, root: bool = False) -> float:
    """Return the quotient, or its square root; 0 against 0 is 0, anything else against 0 is infinite.

    >>> divide(ScaledFloat.of(1.0, 5000), ScaledFloat.of(4.0, 5000), root=True)
    0.5
    """
    if not numerator.mantissa:
        return 0.0
    if not denominator.mantissa:
        return math.inf
    return _product(numerator.mantissa / denominator.mantissa, numerator.exponent - denominator.exponent, root=root)


def divide_by_count(total: ScaledFloat, count: int, *, root: bool = False) -> float:
    """Return the quotient of a sum and a count above 0, or its square root.

    >>> divide_by_count(ScaledFloat.of(1.0, 5000), 4), divide_by_count(ScaledFloat.of(9.0), 4, root=True)
    (inf, 1.5)
    """
    return _product(total.mantissa / count, total.exponent, root=root)


def _product(mantissa: float, exponent: int, *, root: bool) -> float:
    """Return ``mantissa * 2 ** exponent``, or its square root."""
    if not root:
        return _times(mantissa, exponent)
    odd = exponent % 2
    return _times(math.sqrt(math.ldexp(mantissa, odd)), (exponent - odd) // 2)


def _times(mantissa: float, exponent: int) -> float:
    try:
        return math.ldexp(mantissa, exponent)
    except OverflowError:
        return math.copysign(math.inf, mantissa)

"""Histograms that add up: of values over equal bins, of magnitudes over powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats

BINS = 40
_HALF = 2.0**-2  # keeps the width of a range inside float64, and the range itself exact
_WIDEST = 2.0**1000


@dataclass(frozen=True)
class Histogram:
    """How many values fall into each of some bins of one width.

    Attributes:
        low: Lower edge of the first bin.
        high: Upper edge of the last bin, which holds it too.
        counts: Values in each bin; a single bin where ``low`` is ``high``, none where there is no value.
    """

    low: float
    high: float
    counts: tuple[int, ...]

    def __add__(self, other: Histogram) -> Histogram:
        """Add up the histograms of two parts; both have the same range."""
        pairs = zip(self.counts, other.counts, strict=True)
        return Histogram(self.low, self.high, tuple(first + second for first, second in pairs))


def count_bins(values: Floats, low: float, high: float, bins: int = BINS) -> Histogram:
    """Count finite values between ``low`` and ``high``.

    >>> count_bins(np.array([0.0, 0.4, 1.0, 1.0]), 0.0, 1.0, bins=4).counts
    (1, 1, 0, 2)
    """
    if not low < high:
        return Histogram(low, high, (int(values.size),) if low == high else ())
    factor = _HALF if high > _WIDEST or low < -_WIDEST else 1.0
    try:
        counts, _ = np.histogram(values * factor if factor != 1 else values, bins, (low * factor, high * factor))
    except ValueError:  # NumPy has no bins that are narrower than values of this size are apart
        counts, _ = np.histogram((values - low) / (high - low), bins, (0.0, 1.0))
    return Histogram(low, high, tuple(int(count) for count in counts))


@dataclass(frozen=True)
class Magnitudes:
    """How many numbers have which power of two as their magnitude.

    Attributes:
        zero: Numbers that are 0.
        exponents: e -> numbers with ``2^e <= |number| < 2^(e + 1)``, in order of e.
    """

    zero: int = 0
    exponents: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Magnitudes) -> Magnitudes:
        """Add up the magnitudes of two parts."""
        both = sorted({*self.exponents, *other.exponents})
        sums = {exponent: self.exponents.get(exponent, 0) + other.exponents.get(exponent, 0) for exponent in both}
        return Magnitudes(self.zero + other.zero, sums)

    def bins(self, most: int = BINS) -> list[tuple[float, float, int]]:
        """Return ``(from, to, count)`` of neighbouring bins of one factor, at most so many, from smallest to largest."""
        if not self.exponents:
            return []
        first, last = min(self.exponents), max(self.exponents)
        width = -(-(last + 1 - first) // most)
        counts: dict[int, int] = dict.fromkeys(range(first, last + 1, width), 0)
        for exponent, count in self.exponents.items():
            counts[first + (exponent - first) // width * width] += count
        return [(_power(start), _power(start + width), count) for start, count in counts.items()]


def count_magnitudes(values: Floats) -> Magnitudes:
    """Count the magnitudes of finite numbers.

    >>> count_magnitudes(np.array([0.0, 1.0, -1.5, 0.25]))
    Magnitudes(zero=1, exponents={-2: 1, 0: 2})
    """
    found = values[values != 0]
    if not found.size:
        return Magnitudes(int(values.size))
    powers: npt.NDArray[np.int32] = np.frexp(found)[1] - 1
    lowest = int(powers.min())
    counts = np.bincount(powers - lowest)
    present = np.flatnonzero(counts)
    return Magnitudes(int(values.size - found.size), {lowest + int(place): int(counts[place]) for place in present})


def _power(exponent: int) -> float:
    """Return ``2^exponent``, infinite above the range of float64."""
    return float(np.ldexp(1.0, exponent)) if exponent <= 1023 else float("inf")

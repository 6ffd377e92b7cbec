"""Histograms whose parts can be added: of values over bins of equal width, and of magnitudes over powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats

BINS = 40
_HALF = 2.0**-2  # factor for huge ranges: their width would overflow float64; a power of two rounds nothing
_WIDEST = 2.0**1000  # magnitude from which a range is huge


@dataclass(frozen=True)
class Histogram:
    """Number of values in each of several bins of equal width.

    Attributes:
        low: Lower edge of the first bin.
        high: Upper edge of the last bin, which includes it.
        counts: Number of values in each bin; a single bin if ``low`` equals ``high``, none if there are no values.
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
    except ValueError:  # a range of a few units in the last place: NumPy refuses bins narrower than the gap between values
        counts, _ = np.histogram((values - low) / (high - low), bins, (0.0, 1.0))
    return Histogram(low, high, tuple(int(count) for count in counts))


@dataclass(frozen=True)
class Magnitudes:
    """Number of values by the power of two of their magnitude.

    Attributes:
        zero: Number of zeros.
        exponents: e -> number of values with ``2^e <= |value| < 2^(e + 1)``, in order of e.
    """

    zero: int = 0
    exponents: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Magnitudes) -> Magnitudes:
        """Add up the magnitudes of two parts."""
        both = sorted({*self.exponents, *other.exponents})
        sums = {exponent: self.exponents.get(exponent, 0) + other.exponents.get(exponent, 0) for exponent in both}
        return Magnitudes(self.zero + other.zero, sums)

    def bins(self, most: int = BINS) -> list[tuple[float, float, int]]:
        """Return ``(from, to, count)`` of at most ``most`` bins in ascending order; ``to / from`` is the same for all."""
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
    nonzero = values[values != 0]
    if not nonzero.size:
        return Magnitudes(int(values.size))
    powers: npt.NDArray[np.int32] = np.frexp(nonzero)[1] - 1  # frexp's mantissa is in [0.5, 1), ours in [1, 2)
    lowest = int(powers.min())
    counts = np.bincount(powers - lowest)
    present = np.flatnonzero(counts)
    return Magnitudes(int(values.size - nonzero.size), {lowest + int(place): int(counts[place]) for place in present})


def _power(exponent: int) -> float:
    """Return ``2^exponent``, infinite above the range of float64."""
    return float(np.ldexp(1.0, exponent)) if exponent <= 1023 else float("inf")

"""Tests of paired samples, and the smallest effect that a number of samples could have shown.

Every sample gives an amount that is larger the worse the target is. All tests are one-sided, as a limit is.

* :func:`flip_signs`: any amounts. If their mean were at the limit, each sample's distance to it could as well have the other
  sign (Fisher, The Design of Experiments, 1935, section 21; for drawn signs Phipson and Smyth, 2010).
* :func:`bound_share`: amounts from 0 to 1. Of 0 and 1 the exact binomial test (Clopper and Pearson, 1934); of shares between
  the two, Hoeffding's bound (1963, theorem 1), which holds whatever their distribution is.
* :func:`compare_changes`: right or wrong on either side. The exact test of McNemar (1947): of the samples that changed, as many
  should have become better as worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

LEVEL = 0.05  # a test that would be met by chance more often than this shows nothing
POWER = 0.8  # how often an effect has to be seen for "could have been seen"
_EXACT = 14  # samples up to which all signs are tried
_DRAWN = 1000  # samples up to which signs are drawn; beyond, the sum of flipped signs is as good as normal
_DRAWS = 9_999
FEWEST = 5  # samples; with fewer, no outcome of `flip_signs` and `compare_changes` is rarer than LEVEL


def flip_signs(margins: Sequence[float]) -> float:
    """Return how often a mean as large as that of the margins would come about if the true one were 0 or less.

    >>> flip_signs([1.0] * 5), flip_signs([1.0, -1.0])
    (0.03125, 0.75)
    """
    values = np.asarray(margins, np.float64)
    sizes, total = np.abs(values), float(values.sum())
    nearly = total - 1e-12 * float(sizes.sum())  # sums of the same numbers in another order are not all equal
    if not values.size or not sizes.any():
        return 1.0
    if values.size <= _EXACT:
        signs = 1 - 2 * (np.arange(1 << values.size)[:, None] >> np.arange(values.size) & 1)
        return float(np.mean(signs @ sizes >= nearly))
    if values.size <= _DRAWN:
        generator = np.random.default_rng(0)  # the same verdict each time
        signs = 1 - 2 * generator.integers(0, 2, (_DRAWS, values.size), np.int8)
        return float((1 + np.count_nonzero(signs @ sizes >= nearly)) / (1 + _DRAWS))
    return 1 - NormalDist().cdf(total / math.sqrt(float(values @ values)))


def bound_share(amounts: Sequence[float], limit: float) -> float:
    """Return how often a mean as small as that of amounts from 0 to 1 would come about if the true one were at the limit.

    >>> round(bound_share([0.0] * 59, 0.05), 3), bound_share([1.0], 0.05)
    (0.048, 1.0)
    """
    count, total = len(amounts), math.fsum(amounts)
    if not count or total >= count * limit:
        return 1.0
    if all(amount in {0, 1} for amount in amounts):
        return 1 - count_at_least(round(total) + 1, count, limit)
    mean = total / count
    apart = (mean * math.log(mean / limit) if mean else 0.0) + (1 - mean) * math.log((1 - mean) / (1 - limit))
    return math.exp(-count * apart)


def compare_changes(worse: int, better: int) -> float:
    """Return how often at least ``worse`` of all changes would be for the worse if either were as likely.

    >>> compare_changes(5, 0), compare_changes(0, 0)
    (0.03125, 1.0)
    """
    return count_at_least(worse, worse + better, 0.5)


def count_at_least(hits: int, count: int, share: float) -> float:
    """Return the probability of at least ``hits`` of ``count`` where each comes with probability ``share``."""
    if hits <= 0 or share >= 1:
        return 1.0
    if share <= 0 or hits > count:
        return 0.0
    logs = (
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * math.log(share)
        + (count - k) * math.log1p(-share)
        for k in range(hits, count + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))


def find_smallest_shift(amounts: Sequence[float]) -> float | None:
    """Return the smallest shift of the mean that a test at ``LEVEL`` sees with ``POWER``; ``None`` if scatter is not known.

    That is the standard error times the sum of two quantiles of Student's t (Bloom, 1995, "Minimum detectable effects").
    """
    count = len(amounts)
    if count < FEWEST:
        return None
    scatter = float(np.std(np.asarray(amounts, np.float64), ddof=1))
    mean = abs(math.fsum(amounts) / count)
    if scatter <= 1e-12 * mean or not scatter:  # all of them are alike
        return None
    quantiles = student_quantile(1 - LEVEL, count - 1) + student_quantile(POWER, count - 1)
    return float(quantiles * scatter / math.sqrt(count))


def find_smallest_share(count: int, hits: int = 1) -> float | None:
    """Return the smallest share of samples of which at least ``hits`` come up with ``POWER``; ``None`` if no share is enough.

    >>> find_smallest_share(1), find_smallest_share(4, FEWEST)
    (0.8, None)
    """
    if count < hits:
        return None
    if hits == 1:
        return round(1 - float((1 - POWER) ** (1 / count)), 12)
    return _solve(lambda share: count_at_least(hits, count, share), POWER, 0.0, 1.0)


def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile above the median of Student's t; closed form of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    if freedom > 200:
        return NormalDist().inv_cdf(probability)
    return _solve(lambda value: 0.5 + _between(value, freedom) / 2, probability, 0.0, 1e4)


def _between(value: float, freedom: int) -> float:
    """Return the probability that Student's t is between ``-value`` and ``value``."""
    angle = math.atan(value / math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    term = total = 0.0
    for power in range(odd, freedom - 1, 2):  # of the cosine
        term = (math.cos(angle) if odd else 1.0) if not term else term * square * (power - 1) / power
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)


def _solve(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Return where a growing function reaches a value."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return high

"""Further passes over a segment: extremes, distances, quotients and counts at the limits, in NumPy's float64 and integers."""

import numba
import numpy as np
import pytest

from precflow.comparison.compiled import segment_sums
from precflow.comparison.compiled.layout import FIRST_RUNG, OFFSET, TALLIES
from precflow.comparison.fused.close_tolerances import RUNGS, count_close
from precflow.comparison.fused.ulp_distance import ulp_distances as ulps

NORMAL = np.finfo(np.float32).smallest_normal.view(np.int32)
RNG = np.random.default_rng(12)
Y = RNG.standard_normal(2000).astype(np.float32)
X = (Y * (1 + 10.0 ** RNG.uniform(-8, -1, Y.size))).astype(np.float32)
LADDER = np.array([RUNGS[name] for name in ("float32", "float16", "bfloat16")])


@numba.njit
def extremes(y, x):
    return segment_sums.extremes(y, x)


@numba.njit
def differing(y, x):
    return segment_sums.differing_bits(y, x)


@numba.njit
def distances(y, x, normal):
    return segment_sums.distances(y, x, normal)


@numba.njit
def quotients(y, x, normal):
    return segment_sums.exact_quotients(y, x, normal)


@numba.njit
def within(y, x, counts):
    segment_sums.add_within(y, x, counts)


@numba.njit
def close(y, x, rungs, counts):
    segment_sums.add_close(y, x, rungs, counts)


@numba.njit
def row_squares(y, x, first, length, squares):
    segment_sums.add_row_squares(y, x, first, length, squares)


def bits(values):
    return values.view(np.int32)


def test_extremes_are_orders_of_the_values():
    low, high = extremes(bits(Y), bits(X))
    smallest, largest = min(Y.min(), X.min()), max(Y.max(), X.max())
    assert (low, high) == (-int(np.abs(smallest).view(np.int32)), int(largest.view(np.int32)))


def test_bits_that_differ_are_told_of_every_element():
    x = Y.copy()
    assert differing(bits(Y), bits(x)) == 0
    x[3] = np.nextafter(x[3], np.float32(9))
    x[1999] = -x[1999]
    found = differing(bits(Y), bits(x))
    assert found == np.bitwise_or.reduce(bits(Y) ^ bits(x))
    assert found < 0, "a sign"


def test_short_types_differ_as_float32_does():
    y = np.array([1.0, 2.0], np.float16)
    assert differing(y.view(np.uint16), y.view(np.uint16)) == 0
    assert differing(y.view(np.uint16), np.array([1.0, 2.0], np.float32).view(np.int32)) == 0
    assert differing(y.view(np.uint16), np.array([1.0, 2.5], np.float32).view(np.int32)) != 0


def test_distances_are_those_in_units_in_the_last_place():
    found = ulps(Y, X, "float32")
    assert distances(bits(Y), bits(X), NORMAL) == (float(found.sum()), found.max())


def test_distances_across_zero_fit_and_small_references_have_none():
    y, x = np.array([1e30, 1e-42, 0], np.float32), np.array([-1e30, 5, 3], np.float32)
    expected = int(ulps(y[:1], x[:1], "float32")[0])
    assert distances(bits(y), bits(x), NORMAL) == (expected, expected)
    assert expected > 1 << 31


def test_the_largest_quotients_are_correctly_rounded():
    y, x = Y.astype(np.float64), X.astype(np.float64)
    d = np.abs(x - y)
    expected = (d / np.abs(y)).max(), (d / (np.abs(y) + OFFSET)).max()
    assert quotients(bits(Y), bits(X), NORMAL) == expected


def test_a_small_reference_has_an_offset_quotient_alone():
    y, x = np.array([0, 1e-42], np.float32), np.array([1, 0], np.float32)
    quotient, offset = quotients(bits(y), bits(x), NORMAL)
    assert (quotient, offset) == (0.0, 1 / OFFSET)


@pytest.mark.parametrize("share", [0.001, 0.005])
def test_counts_at_a_share_hang_on_no_rounding(share):
    y = np.arange(1000, 30_000, dtype=np.float32)
    x = np.concatenate([np.nextafter(y * np.float32(1 + share), np.float32(way)) for way in (0, 1e9)])
    y = np.concatenate([y, y])
    counts = np.zeros(TALLIES, np.int64)
    within(bits(y), bits(x), counts)
    relative = np.abs(x.astype(np.float64) - y) / y
    assert counts[2:4].tolist() == [np.count_nonzero(relative <= 0.001), np.count_nonzero(relative <= 0.005)]


@pytest.mark.parametrize("nudge", [0.0, 1.0, -1.0])
def test_counts_at_the_rungs_are_numpy_s_to_the_last_bit(nudge):
    y = np.abs(Y) + np.float32(0.1)
    limit = [relative * y.astype(np.float64) + absolute for relative, absolute in LADDER]
    x = np.concatenate([(y + one * (1 + nudge * 1e-7)).astype(np.float32) for one in limit])
    y = np.tile(y, len(limit))
    counts = np.zeros(TALLIES, np.int64)
    close(bits(y), bits(x), LADDER, counts)
    distance = np.abs(x.astype(np.float64) - y)
    expected = count_close(distance, y.astype(np.float64), ("float32", "float16", "bfloat16"))
    assert counts[FIRST_RUNG : FIRST_RUNG + 3].tolist() == list(expected.values())


@pytest.mark.parametrize(("size", "first", "length"), [(60, 0, 6), (56, 8, 7), (5, 2, 100), (60, 0, 1)])
def test_squares_go_to_their_rows(size, first, length):
    squares = np.zeros((2, (first + size - 1) // length + 1))
    row_squares(bits(Y[:size]), bits(X[:size]), first, length, squares)
    y, x = Y[:size].astype(np.float64), X[:size].astype(np.float64)
    rows = (np.arange(size) + first) // length
    for found, values in zip(squares, (x - y, y), strict=True):
        assert found == pytest.approx(np.bincount(rows, values * values, found.size), rel=1e-12)

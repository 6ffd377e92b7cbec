"""The one loop over a segment: its numbers against NumPy's float64, and which segments it turns down."""

import numba
import numpy as np
import pytest

from precflow.comparison.compiled import fast_path
from precflow.comparison.compiled.kl_terms import NEARBY
from precflow.comparison.compiled.layout import LONG_ROW, OFFSET, SEGMENT
from precflow.comparison.fused.kl_divergence import sum_divergence_terms
from precflow.comparison.fused.ulp_distance import ulp_distances

Y = np.array([1.5, -2.0, 3.0, 0.25], np.float32)


@numba.njit
def measured(y, x, reference, target):
    return fast_path.measure_segment(y, x, reference, target, distribution=True)


@numba.njit
def measured_without_terms(y, x, reference, target):
    return fast_path.measure_segment(y, x, reference, target, distribution=False)


@numba.njit
def segment_end(begin, size, first, length):
    return fast_path.segment_end(begin, size, first, length)


def looked(y, x):
    left, right = y.view(np.int32), x.view(np.int32)
    return measured(left, right, left, right)


@pytest.mark.parametrize("error", [1e-7, 1e-3, 2.0])
def test_sums_and_maxima_are_those_of_float64(error):
    random = np.random.default_rng(5)
    y = random.standard_normal(SEGMENT).astype(np.float32)
    x = (y * (1 + error * random.standard_normal(SEGMENT))).astype(np.float32)
    sums, (d_largest, quotient_largest), *_ = looked(y, x)
    wide_y, wide_x = y.astype(np.float64), x.astype(np.float64)
    d, y_abs = np.abs(wide_x - wide_y), np.abs(wide_y)
    terms = d, d * d, y_abs, wide_y**2, wide_x**2, wide_x * wide_y, d / y_abs, d / (y_abs + OFFSET)
    assert sums == pytest.approx([float(term.sum()) for term in terms], rel=1e-13)
    assert d_largest == d.max()
    assert quotient_largest == pytest.approx((d / y_abs).max(), rel=1e-12)


def test_equal_segments_differ_in_no_bit():
    _, _, (differing, *_), distance, _ = looked(Y, Y.copy())
    assert (differing, distance) == (0, (0, 0))


def test_the_largest_magnitude_is_that_of_each_side_and_the_smallest_the_reference_s():
    x = Y.copy()
    x[0], x[3] = -9, 0
    _, _, (_, _, *ends), *_ = looked(Y, x)
    assert [np.int32(end).view(np.float32) for end in ends] == [3.0, 9.0, 0.25]


def test_signs_are_told():
    positive = np.abs(Y)
    assert looked(positive, positive.copy())[2][1] >= 0
    assert looked(Y, Y.copy())[2][1] < 0, "a value is negative"
    assert looked(Y, Y.copy())[2][0] >= 0, "and none of the other sign"
    assert looked(positive, Y)[2][0] < 0


def test_a_value_that_is_not_finite_leaves_no_number_for_the_largest_difference():
    for value in (np.nan, np.inf, -np.inf):
        x = Y.copy()
        x[2] = value
        assert not looked(Y, x)[1][0] < np.inf


def test_distances_of_one_sign_are_those_in_the_last_place():
    x = (Y * np.float32(1.001)).astype(np.float32)
    expected = ulp_distances(Y, x, "float32")
    assert looked(Y, x)[3] == (expected.max(), expected.sum())


@pytest.mark.parametrize(("kind", "pattern"), [(np.float16, np.uint16), (np.float32, np.int32)])
def test_distances_are_of_the_own_type(kind, pattern):
    y = np.arange(1, 9).astype(kind)
    x = np.nextafter(y, kind(100))
    wide = (side.astype(np.float32).view(np.int32) for side in (y, x))
    assert measured(*wide, y.view(pattern), x.view(pattern))[3] == (1, 8)


@pytest.mark.parametrize("error", [1e-7, 1e-5, 0.9 * NEARBY])
def test_terms_of_near_values_are_those_of_the_divergence(error):
    random = np.random.default_rng(6)
    y = random.random(SEGMENT).astype(np.float32) + np.float32(1e-3)
    x = (y * (1 + error * random.uniform(-1, 1, SEGMENT))).astype(np.float32)
    wide_y, wide_x = y.astype(np.float64), x.astype(np.float64)
    total, x_sum = looked(y, x)[4]
    assert total == pytest.approx(sum_divergence_terms(wide_y, wide_x, 1e-45), rel=1e-12)
    assert x_sum == pytest.approx(float(wide_x.sum()), rel=1e-13)


def test_all_else_is_the_same_where_no_terms_are_taken():
    x = (Y * np.float32(1.001)).astype(np.float32)
    left, right = Y.view(np.int32), x.view(np.int32)
    without = measured_without_terms(left, right, left, right)
    for found, expected in zip(without[:4], looked(Y, x)[:4], strict=True):
        assert found == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("length", [LONG_ROW, 300, 511, 3 * SEGMENT + 1])
def test_segments_of_long_rows_lie_within_one_and_leave_nothing_out(length):
    first, size, begin = 100, 5000, 0
    while begin < size:
        end = segment_end(begin, size, first, length)
        assert begin < end <= min(begin + SEGMENT, size)
        assert (first + begin) // length == (first + end - 1) // length
        begin = end


def test_short_rows_do_not_end_a_segment():
    assert segment_end(0, 5000, 3, LONG_ROW - 1) == SEGMENT
    assert segment_end(4900, 5000, 3, LONG_ROW - 1) == 5000

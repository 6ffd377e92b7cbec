"""The compiled terms of the divergence against NumPy's."""

import numba
import numpy as np
import pytest

from precflow.comparison.compiled.kl_terms import NEARBY, divergence_terms, nearby_terms
from precflow.comparison.fused.kl_divergence import sum_divergence_terms

SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
Y = np.random.default_rng(8).random(3000).astype(np.float32) + np.float32(1e-3)


@numba.njit
def terms(y, x, smallest):
    return divergence_terms(y, x, smallest)


@numba.njit
def nearby(second, third, fourth, fifth):
    return nearby_terms(second, third, fourth, fifth)


def expected(y, x):
    return sum_divergence_terms(y.astype(np.float64), x.astype(np.float64), SMALLEST), float(np.add.reduce(x, dtype=np.float64))


@pytest.mark.parametrize("factor", [1.0, 1 + 1e-6, 1.03, 1.06, 2.0, 1e6])
def test_terms_are_those_of_numpy_near_and_far(factor):
    x = Y * np.float32(factor)
    assert terms(Y.view(np.int32), x.view(np.int32), SMALLEST) == pytest.approx(expected(Y, x), rel=1e-12)


def test_near_and_far_ones_beside_each_other():
    x = Y.copy()
    x[::7] *= np.float32(3)
    x[::11] = 0
    y = Y.copy()
    y[::13] = 0
    assert terms(y.view(np.int32), x.view(np.int32), SMALLEST) == pytest.approx(expected(y, x), rel=1e-12)


def test_equal_values_add_nothing():
    assert terms(Y.view(np.int32), Y.view(np.int32), SMALLEST)[0] == 0.0
    zeros = np.zeros(4, np.int32)
    assert terms(zeros, zeros, SMALLEST) == (0.0, 0.0)


def test_what_became_zero_is_charged_as_the_smallest_number():
    y, x = np.ones(1, np.float32), np.zeros(1, np.float32)
    total, target_sum = terms(y.view(np.int32), x.view(np.int32), SMALLEST)
    assert target_sum == 0.0
    assert total == pytest.approx(np.log(1 / SMALLEST) - 1, rel=1e-12)


def test_nearby_values_take_a_series_to_the_same():
    x = (Y * (1 + np.random.default_rng(9).uniform(-NEARBY, NEARBY, Y.size) * 0.9)).astype(np.float32)
    y = Y.astype(np.float64)
    quotient = (x.astype(np.float64) - y) / y
    found = nearby(*(float(np.sum(y * quotient**power)) for power in (2, 3, 4, 5)))
    assert found == pytest.approx(expected(Y, x)[0], rel=1e-12)
    assert found == pytest.approx(terms(Y.view(np.int32), x.view(np.int32), SMALLEST)[0], rel=1e-12)

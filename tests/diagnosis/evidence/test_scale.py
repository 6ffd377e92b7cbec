"""Fits against constructed data and NumPy's own least squares."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.error_shape import error_cosine, fit_scale, relative_error

GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.standard_normal(10_000)
NOISE = GENERATOR.standard_normal(10_000)


def test_a_pure_factor_is_found_exactly():
    fit = fit_scale(VALUES, 1.01 * VALUES)
    assert fit.slope == pytest.approx(1.01, rel=1e-12)
    assert fit.share == pytest.approx(1.0)


def test_the_slope_is_that_of_least_squares():
    target = 1.01 * VALUES + 1e-3 * NOISE
    expected = np.linalg.lstsq(VALUES[:, None], target, rcond=None)[0][0]
    fit = fit_scale(VALUES, target)
    assert fit.slope == pytest.approx(expected, rel=1e-12)
    assert fit.share == pytest.approx(1 - np.sum((target - expected * VALUES) ** 2) / np.sum((target - VALUES) ** 2))


def test_rounding_is_no_factor_and_has_no_direction():
    target = VALUES.astype(np.float16).astype(float)
    assert fit_scale(VALUES, target).share < 0.01
    assert abs(error_cosine(VALUES, target)) < 0.05


@pytest.mark.parametrize(("factor", "cosine"), [(1.01, 1.0), (0.99, -1.0)])
def test_the_error_of_a_factor_lies_along_the_value(factor, cosine):
    assert error_cosine(VALUES, factor * VALUES) == pytest.approx(cosine)


def test_relative_error_is_the_ratio_of_norms():
    target = VALUES + 1e-4 * NOISE
    assert relative_error(VALUES, target) == pytest.approx(np.linalg.norm(target - VALUES) / np.linalg.norm(VALUES))


def test_what_is_not_defined_is_none():
    zero = np.zeros(4)
    assert fit_scale(zero, zero) is None
    assert fit_scale(VALUES, VALUES) is None
    assert error_cosine(VALUES, VALUES) is None
    assert relative_error(zero, np.ones(4)) is None
    assert relative_error(np.empty(0), np.empty(0)) is None

"""Shapes of errors: curves over the input, constant factors (by least squares), values of a narrower type (by casts)."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.diagnosis.evidence.error_shape import (
    count_error_bits,
    find_narrow_type,
    find_uneven_factor,
    fit_scale,
    has_fixed_step,
    measure_curve_share,
    measure_error_cosine,
    measure_relative_error,
)

GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.standard_normal(10_000)
NOISE = GENERATOR.standard_normal(10_000)
MATRIX = GENERATOR.standard_normal((64, 512))


def test_another_formula_of_gelu_is_a_curve():
    tensor = torch.tensor(MATRIX)
    exact, approximate = (torch.nn.functional.gelu(tensor, approximate=kind).numpy() for kind in ("none", "tanh"))
    assert measure_curve_share(MATRIX, approximate - exact) > 0.99


def test_noise_is_no_curve():
    assert measure_curve_share(MATRIX, 1e-3 * GENERATOR.standard_normal(MATRIX.shape)) < 0.05


def test_half_a_curve_is_half_explained():
    smooth = np.sin(MATRIX)
    noise = GENERATOR.standard_normal(MATRIX.shape) * smooth.std()
    assert measure_curve_share(MATRIX, smooth + noise) == pytest.approx(0.5, abs=0.05)


def test_a_curve_is_told_from_single_errors_in_few_elements():
    few = MATRIX[0, :100]
    assert measure_curve_share(few, np.sin(few)) > 0.9
    assert measure_curve_share(few, GENERATOR.standard_normal(100)) < 0.4
    assert measure_curve_share(few, np.eye(100)[40]) < 0.1


def test_too_few_elements_or_no_error_give_none():
    assert measure_curve_share(MATRIX[:1, :60], MATRIX[:1, :60]) is None
    assert measure_curve_share(MATRIX, np.zeros_like(MATRIX)) is None


def test_broken_elements_are_left_out():
    error = np.sin(MATRIX)
    error[0, 0] = np.nan
    assert measure_curve_share(MATRIX, error) > 0.99


def test_a_pure_factor_is_found_exactly():
    fit = fit_scale(VALUES, 1.01 * VALUES)
    assert fit.slope == pytest.approx(1.01, rel=1e-12)
    assert fit.share == pytest.approx(1.0)


def test_what_is_small_or_lost_is_no_factor_of_what_is_large():
    assert fit_scale(VALUES, 1e-3 * NOISE).share < 0.01
    assert fit_scale(VALUES, 0 * VALUES + 1e-3).share < 0.01
    assert fit_scale(VALUES, 1e-3 * VALUES).share == pytest.approx(1.0)


def test_the_slope_is_that_of_least_squares():
    target = 1.01 * VALUES + 1e-3 * NOISE
    expected = np.linalg.lstsq(VALUES[:, None], target, rcond=None)[0][0]
    fit = fit_scale(VALUES, target)
    assert fit.slope == pytest.approx(expected, rel=1e-12)
    assert fit.share == pytest.approx(1 - np.sum((target - expected * VALUES) ** 2) / np.sum((target - VALUES) ** 2))


def test_rounding_is_no_factor_and_has_no_direction():
    target = VALUES.astype(np.float16).astype(float)
    assert fit_scale(VALUES, target).share < 0.01
    assert abs(measure_error_cosine(VALUES, target)) < 0.05


@pytest.mark.parametrize(("factor", "cosine"), [(1.01, 1.0), (0.99, -1.0)])
def test_the_error_of_a_factor_lies_along_the_value(factor, cosine):
    assert measure_error_cosine(VALUES, factor * VALUES) == pytest.approx(cosine)


def test_relative_error_is_the_ratio_of_norms():
    target = VALUES + 1e-4 * NOISE
    assert measure_relative_error(VALUES, target) == pytest.approx(np.linalg.norm(target - VALUES) / np.linalg.norm(VALUES))


def test_a_small_reference_is_no_missing_one():
    assert measure_relative_error(1e-6 * VALUES, 2e-6 * VALUES) == pytest.approx(1.0)


def test_what_is_not_defined_is_none():
    zero = np.zeros(4)
    assert fit_scale(zero, zero) is None
    assert fit_scale(VALUES, VALUES) is None
    assert measure_error_cosine(VALUES, VALUES) is None
    assert measure_relative_error(zero, np.ones(4)) is None
    assert measure_relative_error(np.empty(0), np.empty(0)) is None


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16"), (np.float32, "")])
def test_the_narrower_type_is_named(dtype, name):
    assert find_narrow_type(VALUES.astype(dtype).astype(np.float64)) == name


def test_one_value_that_does_not_fit_is_enough():
    rounded = VALUES.astype(np.float16).astype(np.float64)
    rounded[17] += 1e-6
    assert find_narrow_type(rounded) == ""


def test_few_different_values_say_nothing():
    assert find_narrow_type(np.tile([0.0, 0.5, 1.0], 1000)) == ""


def test_values_that_are_not_finite_are_left_out():
    rounded = VALUES.astype(np.float16).astype(np.float64)
    assert find_narrow_type(np.append(rounded, [np.nan, -np.inf])) == "float16"


def test_values_beyond_half_are_no_halves():
    assert find_narrow_type(np.arange(100.0) * 65536) == "bfloat16"


def test_bits_of_an_error():
    assert count_error_bits(2.0**-10) == 10.0
    assert math.isinf(count_error_bits(0.0))


def test_values_of_a_table_have_a_fixed_step_and_those_of_a_narrow_type_have_not():
    values = GENERATOR.standard_normal(5000)
    for step in (2.0**-9, 2.0**-4, 0.01):
        assert has_fixed_step((values / step).round() * step, values) is (
            step != 0.01
        )  # steps of floating point are powers of 2
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert not has_fixed_step(values.astype(dtype).astype(np.float64), values)
    small = np.linspace(0, 1e-5, 3001)  # below the smallest normal number of float16, whose own step is fixed there
    assert not has_fixed_step(small.astype(np.float16).astype(np.float64), small)
    positions = np.arange(1000.0)
    assert not has_fixed_step(positions.astype(ml_dtypes.bfloat16).astype(np.float64), positions)  # whole numbers on both sides


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("axis", [0, 1])
def test_factors_of_slices_are_told_from_one_factor_in_16_bits(dtype, axis):
    def rounded(values):
        return values.astype(dtype).astype(np.float64)

    right = rounded(MATRIX)
    spread = 1.03 + 0.006 * np.random.default_rng(1).standard_normal((64, 1) if axis == 0 else (1, 512))
    assert find_uneven_factor(right, rounded(right * spread)) == ("rows" if axis == 0 else "columns")
    assert find_uneven_factor(right, rounded(right * 1.03)) == ""
    assert find_uneven_factor(right, right) == ""
    assert find_uneven_factor(VALUES, VALUES * 1.1 + 1e-3 * NOISE) == ""

"""Values that fit into a narrower type, by NumPy's and ml_dtypes' own casts."""

import math

import ml_dtypes
import numpy as np
import pytest

from precflow.diagnosis.evidence.error_shape import error_bits, narrow_type

VALUES = np.random.default_rng(2).standard_normal(1000)


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16"), (np.float32, "")])
def test_the_narrower_type_is_named(dtype, name):
    assert narrow_type(VALUES.astype(dtype).astype(np.float64)) == name


def test_one_value_that_does_not_fit_is_enough():
    rounded = VALUES.astype(np.float16).astype(np.float64)
    rounded[17] += 1e-6
    assert narrow_type(rounded) == ""


def test_few_different_values_say_nothing():
    assert narrow_type(np.tile([0.0, 0.5, 1.0], 1000)) == ""


def test_values_that_are_not_finite_are_left_out():
    rounded = VALUES.astype(np.float16).astype(np.float64)
    assert narrow_type(np.append(rounded, [np.nan, -np.inf])) == "float16"


def test_values_beyond_half_are_no_halves():
    assert narrow_type(np.arange(100.0) * 65536) == "bfloat16"


def test_bits_of_an_error():
    assert error_bits(2.0**-10) == 10.0
    assert math.isinf(error_bits(0.0))

"""The assertion for unit tests."""

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.errors import ConfigError
from precflow.judgement.assertion import as_array, assert_aligned

VALUES = torch.linspace(-3, 3, 60).reshape(6, 10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_passes_and_a_fault_does_not(dtype):
    assert_aligned(VALUES.to(dtype), VALUES)
    with pytest.raises(AssertionError, match=r"not aligned \(fail\): relative_l2 .* times its limit .* \(default\)"):
        assert_aligned((VALUES * 1.1).to(dtype), VALUES)


def test_the_standard_is_chosen():
    assert_aligned(VALUES + 1e-6, VALUES, standard="default")
    with pytest.raises(AssertionError, match="allclose_share_float32"):
        assert_aligned(VALUES + 1e-4, VALUES, standard="allclose")
    with pytest.raises(ConfigError, match="no standard 'strict'"):
        assert_aligned(VALUES, VALUES, standard="strict")


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (np.ones(3), np.ones(4), r"shape \[3\], expected \[4\]"),
        (np.array([np.nan, 1.0]), np.ones(2), r"\(nonfinite\)"),
        (np.full(2, np.nan), np.full(2, np.nan), r"\(blind\): nothing ordinary"),
        (np.zeros(0), np.zeros(0), r"\(blind\)"),
        (np.int64([1]), np.int64([2]), "must be equal"),
        (np.int32([1]), np.int64([1]), "int32 differs from the expected int64"),
        (np.float32([1]), np.int64([1]), "must be equal"),
    ],
)
def test_nothing_passes_by_default(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        assert_aligned(actual, expected)


def test_integers_pass_when_equal():
    assert_aligned(torch.tensor([True, False]), np.array([True, False]))


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_torch_tensors_keep_their_bits(name):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name)).T
    array = as_array(tensor)
    assert array.dtype == NUMPY_DTYPES[name]
    assert array.shape == (3, 2)
    assert array.astype(np.complex128).tolist() == tensor.to(torch.complex128).tolist()


def test_other_values():
    assert as_array(ml_dtypes.bfloat16(2)).dtype.name == "bfloat16"
    assert as_array(torch.zeros(0, 3)).shape == (0, 3)
    assert as_array(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    with pytest.raises(TypeError, match="cannot compare elements of type"):
        as_array(["text"])
    with pytest.raises(TypeError, match=r"torch\.float8_e4m3fnuz"):
        as_array(VALUES.to(torch.float8_e4m3fnuz))

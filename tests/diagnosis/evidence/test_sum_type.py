"""Sums of products that were kept in 16 bits are recognised behind a bias, and others are not."""

import ml_dtypes
import numpy as np
import pytest

from precflow.diagnosis.evidence.sum_type import find_sum_type

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((32, 96)).astype(np.float32)
W = RANDOM.standard_normal((48, 96)).astype(np.float32)
BIAS = RANDOM.standard_normal(48).astype(np.float32)
INPUTS = {"0": X, "1": W, "2": BIAS}


def on_another_chip(x, w):
    """A product in float32 that adds up blocks of 16 terms, last block first."""
    total = np.zeros((len(x), len(w)), np.float32)
    for start in reversed(range(0, x.shape[1], 16)):
        total += x[:, start : start + 16] @ w[:, start : start + 16].T
    return (total + BIAS).astype(np.float64)


@pytest.mark.parametrize(("dtype", "name"), [(ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float16")])
def test_sums_in_16_bits_show_behind_a_bias_in_float32(dtype, name):
    """Partial sums are rounded to the type, in blocks of any size; the bias is added in float32."""
    for block in (16, 32):
        total = np.zeros((len(X), len(W)), dtype)
        for start in range(0, X.shape[1], block):
            added = X[:, start : start + block] @ W[:, start : start + block].T
            total = (total.astype(np.float32) + added).astype(dtype)
        target = (total.astype(np.float32) + BIAS).astype(np.float64)
        assert find_sum_type("linear", INPUTS, target, np.dtype("float32")) == name
        assert find_sum_type("addmm", {"0": BIAS, "1": X, "2": W.T}, target, np.dtype("float32")) == name


def test_sums_in_bfloat16_show_in_float16():
    total = (X @ W.T).astype(ml_dtypes.bfloat16).astype(np.float32)
    for sums, name in ((total, "bfloat16"), (X @ W.T, "")):
        target = (sums + BIAS).astype(np.float16).astype(np.float64)
        assert find_sum_type("linear", INPUTS, target, np.dtype("float16")) == name
        assert find_sum_type("linear", INPUTS, target, np.dtype(ml_dtypes.bfloat16)) == ""


def test_sums_in_float32_and_what_is_no_sum_with_a_bias_have_no_such_type():
    assert find_sum_type("linear", INPUTS, on_another_chip(X, W), np.dtype("float32")) == ""
    shortened = (one.astype(ml_dtypes.bfloat16).astype(np.float32) for one in (X, W))
    assert find_sum_type("linear", INPUTS, on_another_chip(*shortened), np.dtype("float32")) == ""
    assert find_sum_type("linear", {"0": X, "1": W}, on_another_chip(X, W), np.dtype("float32")) == ""
    assert (
        find_sum_type("conv2d", {"0": X, "1": W, "2": BIAS[:5]}, on_another_chip(X, W)[None, None], np.dtype("float32")) == ""
    )
    # Next to a bias that is millions of times as large, nothing is left of the sums.
    large = (on_another_chip(X, W) + 1e7).astype(np.float32).astype(float)
    assert find_sum_type("linear", {**INPUTS, "2": BIAS + np.float32(1e7)}, large, np.dtype("float32")) == ""

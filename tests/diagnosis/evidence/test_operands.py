"""Rounded operands are recognised by computing the product again, and no other error of the same size is taken for them."""

import ml_dtypes
import numpy as np
import pytest

from precflow.diagnosis.evidence.operands import find_sum_type, fit_operand_bits, round_significand

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


def fit(target):
    return fit_operand_bits("linear", {}, INPUTS, target)


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
    shortened = (round_significand(one.astype(float), 7).astype(np.float32) for one in (X, W))
    assert find_sum_type("linear", INPUTS, on_another_chip(*shortened), np.dtype("float32")) == ""
    assert find_sum_type("linear", {"0": X, "1": W}, on_another_chip(X, W), np.dtype("float32")) == ""
    assert (
        find_sum_type("conv2d", {"0": X, "1": W, "2": BIAS[:5]}, on_another_chip(X, W)[None, None], np.dtype("float32")) == ""
    )
    # Next to a bias that is millions of times as large, nothing is left of the sums.
    large = (on_another_chip(X, W) + 1e7).astype(np.float32).astype(float)
    assert find_sum_type("linear", {**INPUTS, "2": BIAS + np.float32(1e7)}, large, np.dtype("float32")) == ""


@pytest.mark.parametrize("bits", [11, 10, 7])
@pytest.mark.parametrize("truncate", [False, True])
def test_shortened_operands_are_found_on_top_of_another_chip(bits, truncate):
    x, w = (round_significand(one.astype(float), bits, truncate=truncate).astype(np.float32) for one in (X, W))
    found = fit(on_another_chip(x, w))
    assert found.bits == bits
    assert found.share > 0.95


def test_a_bias_that_is_rounded_too_is_no_obstacle():
    x, w, bias = (round_significand(one.astype(float), 10) for one in (X, W, 30 * BIAS))
    for added in (bias, 30 * BIAS):
        found = fit_operand_bits("linear", {}, {**INPUTS, "2": 30 * BIAS}, (x @ w.T + added).astype(np.float32).astype(float))
        assert (found.bits, found.share > 0.95) == (10, True)


def test_a_result_that_is_rounded_too_is_found():
    x, w = (round_significand(one.astype(float), 7) for one in (X, W))
    assert fit(round_significand(x @ w.T + round_significand(BIAS.astype(float), 7), 7)).bits == 7


@pytest.mark.parametrize(
    "wrong",
    [
        lambda y: y,
        lambda y: y * (1 + 2**-11),
        lambda y: y * (1 + 2**-11 * RANDOM.standard_normal(y.shape)),
        lambda y: round_significand(y, 10),
        lambda y: np.where(np.arange(len(y))[:, None] == 3, y * 1.01, y),
    ],
)
def test_other_errors_of_that_size_are_not(wrong):
    assert fit(wrong(on_another_chip(X, W))).bits == 0


def test_there_is_no_answer_without_an_error_or_a_known_operator():
    exact = X.astype(float) @ W.astype(float).T + BIAS
    assert fit(exact) is None
    assert fit(np.full_like(exact, np.nan)) is None
    assert fit(exact[:2]) is None
    assert fit_operand_bits("bessel_j0", {}, INPUTS, exact) is None


def test_rounding_keeps_infinity_zero_and_the_sign():
    assert round_significand(np.array([-np.inf, 0.0, -1.26]), 1).tolist() == [-np.inf, 0.0, -1.5]
    assert round_significand(np.array([-1.76]), 1, truncate=True).tolist() == [-1.5]

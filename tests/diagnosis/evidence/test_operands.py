"""Rounded operands are recognised by computing the product again, and no other error of the same size is taken for them."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.operands import fit_operand_bits, round_significand

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

"""The divergence, against SciPy and against many digits of mpmath."""

import mpmath
import numpy as np
import pytest
from scipy.special import rel_entr

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize


def divergence(y, x):
    return measure_all(summarize(np.asarray(y), np.asarray(x)))["kl_divergence"]


@pytest.mark.parametrize("spread", [1.0, 1e-2])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e250])
def test_it_is_scipys(spread, scale):
    rng = np.random.default_rng(2)
    y = rng.random(500) * scale
    x = y * np.exp(spread * rng.standard_normal(500))
    assert divergence(y, x) == pytest.approx(rel_entr(y / y.sum(), x / x.sum()).sum(), rel=1e-9)


@pytest.mark.parametrize("spread", [1e-6, 1e-9])
def test_small_divergences_keep_their_digits(spread):
    rng = np.random.default_rng(3)
    y = rng.random(50)
    x = y * (1 + spread * rng.standard_normal(50))
    with mpmath.workdps(60):
        ys, xs = [mpmath.mpf(v) for v in y.tolist()], [mpmath.mpf(v) for v in x.tolist()]
        sy, sx = mpmath.fsum(ys), mpmath.fsum(xs)
        exact = mpmath.fsum(a / sy * mpmath.log((a / sy) / (b / sx)) for a, b in zip(ys, xs, strict=True))
    assert divergence(y, x) == pytest.approx(float(exact), rel=1e-5)


def test_a_common_factor_is_no_divergence():
    y = np.random.default_rng(4).random(100)
    assert divergence(y, 3 * y) == pytest.approx(0, abs=1e-14)


def test_zeros():
    y = np.array([0.5, 0.5, 0.0], np.float32)
    assert divergence(y, y) == 0.0
    assert divergence(y, np.array([0.5, 0.0, 0.5], np.float32)) == pytest.approx(0.5 * np.log(0.5 / 2.0**-149), rel=1e-6)
    assert divergence(y, np.array([0.5, 0.5, 1.0], np.float32)) == pytest.approx(np.log(2))
    assert divergence(np.zeros(3), np.zeros(3)) == 0.0
    assert divergence(np.zeros(3), np.ones(3)) == np.inf
    assert divergence(np.ones(3), np.zeros(3)) > 1


def test_what_rounds_to_zero_in_float16_is_charged_little():
    y = np.array([1.0, 1e-9], np.float32)
    assert divergence(y, y.astype(np.float16)) < 1e-6


def test_negative_values_have_none():
    y = np.array([1.0, -1e-3])
    assert "kl_divergence" not in measure_all(summarize(y, y * 2))
    assert "kl_divergence" not in measure_all(summarize(y, y))

"""One block, against sums that are written down as they are defined, in exact arithmetic where that matters."""

import math
from fractions import Fraction

import numpy as np
import pytest

from precflow.comparison.fused.kernel import pair_facts, summarize_floats
from precflow.comparison.fused.scaled_float import divide
from precflow.comparison.fused.summary import merge

RNG = np.random.default_rng(7)
Y = RNG.standard_normal((6, 8)).astype(np.float32)
X = (Y * (1 + 1e-3 * RNG.standard_normal(Y.shape))).astype(np.float32)


def block(reference, target, *, row=0, length=8):
    facts = pair_facts(reference.dtype.name, target.dtype.name)
    return summarize_floats(reference.reshape(-1), target.reshape(-1), facts, row=row, length=length)


def exact(terms):
    return float(sum(map(Fraction, terms)))


def test_sums_are_those_of_float64():
    found = block(Y, X)
    y, x = ([float(value) for value in side.reshape(-1)] for side in (Y, X))
    differences = [Fraction(b) - Fraction(a) for a, b in zip(y, x, strict=True)]
    assert float(found.difference_sum) == pytest.approx(exact(map(abs, differences)), rel=1e-14)
    assert float(found.difference_square) == pytest.approx(exact(each**2 for each in differences), rel=1e-14)
    assert float(found.reference_square) == pytest.approx(exact(Fraction(each) ** 2 for each in y), rel=1e-14)
    assert float(found.product) == pytest.approx(exact(Fraction(a) * Fraction(b) for a, b in zip(y, x, strict=True)), rel=1e-14)
    assert found.difference_max == max(map(abs, differences))
    relative = max(abs(d / Fraction(a)) for d, a in zip(differences, y, strict=True))
    assert found.relative_max == pytest.approx(relative, rel=1e-14)


def test_norms_of_rows_have_their_place():
    found = block(Y, X, row=5)
    assert found.rows.first == 5
    assert np.allclose(found.rows.reference, np.linalg.norm(Y.astype(np.float64), axis=1), rtol=1e-14)
    assert np.allclose(found.rows.difference, np.linalg.norm(X.astype(np.float64) - Y, axis=1), rtol=1e-14)


def test_a_piece_of_a_row_is_a_row_of_its_own():
    found = block(Y[0, :5], X[0, :5])
    assert found.rows.reference.shape == (1,)
    assert found.rows.reference[0] == pytest.approx(math.sqrt(exact(Fraction(float(value)) ** 2 for value in Y[0, :5])))


def test_blocks_of_a_tensor_add_up_to_it():
    halves = merge([block(Y[:3], X[:3]), block(Y[3:], X[3:], row=3)])
    whole = block(Y, X)
    assert float(halves.difference_square) == pytest.approx(float(whole.difference_square), rel=1e-14)
    assert (halves.elements, halves.ulp_max, halves.close) == (whole.elements, whole.ulp_max, whole.close)


def test_equal_bits_have_no_error_and_are_told_so():
    found = block(Y, Y.copy())
    assert (found.unequal, found.difference_max, found.ulp_max) == (False, 0.0, 0)
    assert found.within_one_thousandth == found.elements == Y.size
    assert not found.rows.difference.any()


def test_another_type_is_unequal_whatever_the_numbers_are():
    halves = Y.astype(np.float16)
    found = block(halves.astype(np.float32), halves)
    assert (found.unequal, found.difference_max) == (True, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.finfo(np.float32).min])
def test_what_is_not_ordinary_enters_no_sum(value):
    odd, clean = X.copy(), X.copy()
    odd[2, 3] = value
    reference = Y.copy()
    reference[2, 3] = value
    clean[2, 3] = 0
    zeroed = Y.copy()
    zeroed[2, 3] = 0
    found, expected = block(reference, odd), block(zeroed, clean)
    assert float(found.difference_square) == float(expected.difference_square)
    assert float(found.reference_sum) == float(expected.reference_sum)
    assert found.sentinel + found.nonfinite == 1
    assert found.compared == Y.size - 1


def test_a_small_reference_has_no_relative_error_but_counts():
    reference, target = Y.copy(), X.copy()
    reference[0, 0], target[0, 0] = 0.0, 5.0
    found = block(reference, target)
    assert (found.small, found.small_mismatch) == (1, 1)
    assert found.difference_max == 5.0
    assert found.relative_max < 0.1


@pytest.mark.parametrize("exponent", [-1000, -600, 600, 1000])
def test_squares_beyond_float64_are_no_infinities(exponent):
    y = np.ldexp(Y.astype(np.float64), exponent)
    found = block(y, y * 1.5)
    assert divide(found.difference_square, found.reference_square) == pytest.approx(0.25, rel=1e-12)
    assert divide(found.product, found.reference_square) == pytest.approx(1.5, rel=1e-12)
    assert np.all(np.isfinite(found.rows.reference))


def test_a_negative_value_on_either_side_leaves_no_divergence():
    positive = np.abs(Y)
    assert not block(positive, positive * np.float32(1.1)).negative
    assert block(positive, -positive).negative
    assert block(Y, Y.copy()).negative


def test_the_coarser_type_decides_about_units_in_the_last_place():
    halves = Y.astype(np.float16)
    assert block(halves.astype(np.float32), np.nextafter(halves, np.float16(9))).ulp_max == 1
    assert pair_facts("float32", "float16").coarse == "float16"
    assert pair_facts("float32", "float32").same
    assert not pair_facts("float32", "bfloat16").same

"""Numbers beyond the range of float64, against exact fractions."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.fused.scaled_float import Scaled, mean, ratio

numbers = st.builds(Scaled.of, st.floats(allow_nan=False, allow_infinity=False), st.integers(-3000, 3000))


def exact(number):
    return Fraction(number.mantissa) * Fraction(2) ** number.exponent


@given(numbers, numbers)
def test_sums_are_right_to_the_last_bit_of_the_larger(first, second):
    total = exact(first) + exact(second)
    error = abs(exact(first + second) - total)
    assert error <= max(abs(exact(first)), abs(exact(second)), Fraction(0)) * Fraction(2) ** -51


@given(numbers, numbers)
def test_sums_commute(first, second):
    assert first + second == second + first


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_comes_back(value):
    assert float(Scaled.of(value)) == value


def test_out_of_range():
    assert float(Scaled.of(1.0, 5000)) == math.inf
    assert float(Scaled.of(-1.0, 5000)) == -math.inf
    assert float(Scaled.of(1.0, -5000)) == 0.0
    assert float(Scaled.of(math.inf) + Scaled.of(1.0)) == math.inf


@pytest.mark.parametrize(
    ("numerator", "denominator", "root", "expected"),
    [
        (Scaled(), Scaled(), False, 0.0),
        (Scaled(), Scaled.of(2.0), True, 0.0),
        (Scaled.of(2.0), Scaled(), False, math.inf),
        (Scaled.of(1.0, 4000), Scaled.of(1.0, 3999), False, 2.0),
        (Scaled.of(2.0, 4001), Scaled.of(1.0, 4000), True, 2.0),
        (Scaled.of(1.0, -3), Scaled.of(2.0, -4), True, 1.0),
        (Scaled.of(1.0, 5000), Scaled.of(1.0), False, math.inf),
    ],
)
def test_ratios(numerator, denominator, root, expected):
    assert ratio(numerator, denominator, root=root) == expected


@given(numbers, st.integers(1, 1 << 53), st.booleans())
def test_a_mean_is_the_ratio_to_the_count(total, count, root):
    total = Scaled(abs(total.mantissa), total.exponent)
    assert mean(total, count, root=root) == pytest.approx(ratio(total, Scaled.of(count), root=root), rel=1e-15, abs=5e-324)

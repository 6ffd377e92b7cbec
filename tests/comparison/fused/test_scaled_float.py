"""Numbers beyond the range of float64, against exact fractions."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.fused.scaled_float import ScaledFloat, divide, divide_by_count

numbers = st.builds(ScaledFloat.of, st.floats(allow_nan=False, allow_infinity=False), st.integers(-3000, 3000))


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
    assert float(ScaledFloat.of(value)) == value


def test_out_of_range():
    assert float(ScaledFloat.of(1.0, 5000)) == math.inf
    assert float(ScaledFloat.of(-1.0, 5000)) == -math.inf
    assert float(ScaledFloat.of(1.0, -5000)) == 0.0
    assert float(ScaledFloat.of(math.inf) + ScaledFloat.of(1.0)) == math.inf


@pytest.mark.parametrize(
    ("numerator", "denominator", "root", "expected"),
    [
        (ScaledFloat(), ScaledFloat(), False, 0.0),
        (ScaledFloat(), ScaledFloat.of(2.0), True, 0.0),
        (ScaledFloat.of(2.0), ScaledFloat(), False, math.inf),
        (ScaledFloat.of(1.0, 4000), ScaledFloat.of(1.0, 3999), False, 2.0),
        (ScaledFloat.of(2.0, 4001), ScaledFloat.of(1.0, 4000), True, 2.0),
        (ScaledFloat.of(1.0, -3), ScaledFloat.of(2.0, -4), True, 1.0),
        (ScaledFloat.of(1.0, 5000), ScaledFloat.of(1.0), False, math.inf),
    ],
)
def test_ratios(numerator, denominator, root, expected):
    assert divide(numerator, denominator, root=root) == expected


@given(numbers, st.integers(1, 1 << 53), st.booleans())
def test_a_mean_is_the_ratio_to_the_count(total, count, root):
    total = ScaledFloat(abs(total.mantissa), total.exponent)
    assert divide_by_count(total, count, root=root) == pytest.approx(
        divide(total, ScaledFloat.of(count), root=root), rel=1e-15, abs=5e-324
    )

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from precflow.comparison.detail.histogram import Histogram, Magnitudes, count_bins, count_magnitudes

FINITE = arrays.arrays(np.float64, st.integers(0, 50), elements=st.floats(allow_nan=False, allow_infinity=False))
USUAL = arrays.arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e6, 1e6))


@given(USUAL, st.integers(0, 50))
def test_parts_add_up_to_what_numpy_counts(values, cut):
    low, high = values.min(), values.max()
    whole = count_bins(values[:cut], low, high, 7) + count_bins(values[cut:], low, high, 7)
    assert sum(whole.counts) == values.size
    if high - low > 1e-6:
        assert list(whole.counts) == list(np.histogram(values, 7, (low, high))[0])


@pytest.mark.parametrize("low", [-1e6, 1.0, 5e-324, -1e300])
def test_neighbouring_values_fall_into_the_first_and_the_last_bin(low):
    high = np.nextafter(low, np.inf)
    assert count_bins(np.array([low, low, high]), low, high, 7).counts == (2, 0, 0, 0, 0, 0, 1)


def test_one_value_is_one_bin_and_none_is_none():
    assert count_bins(np.full(5, 3.0), 3.0, 3.0).counts == (5,)
    assert count_bins(np.zeros(0), math.inf, -math.inf) == Histogram(math.inf, -math.inf, ())


def test_the_widest_range_does_not_overflow():
    largest = np.finfo(np.float64).max
    assert sum(count_bins(np.array([-largest, 0, largest]), -largest, largest, 3).counts) == 3


@given(FINITE, st.integers(0, 50))
def test_magnitudes_are_powers_of_two(values, cut):
    found = count_magnitudes(values[:cut]) + count_magnitudes(values[cut:])
    assert found == count_magnitudes(values)
    assert found.zero + sum(found.exponents.values()) == values.size
    for exponent, count in found.exponents.items():
        inside = [value for value in values if value and math.frexp(value)[1] - 1 == exponent]
        assert len(inside) == count


@given(FINITE, st.integers(1, 12))
def test_bins_hold_everything_in_few_steps(values, most):
    bins = count_magnitudes(values).bins(most)
    assert len(bins) <= most
    assert sum(count for _, _, count in bins) == np.count_nonzero(values)
    for low, high, count in bins:
        assert count == sum(low <= abs(value) < high for value in values if value)


def test_no_magnitude_has_no_bins():
    assert Magnitudes(3).bins() == []
    assert count_magnitudes(np.array([5e-324, 1e308])).bins(1)[0][1] == math.inf


@pytest.mark.parametrize(("values", "counts"), [([0, 0.4, 1, 1], (1, 1, 0, 2))])
def test_the_last_bin_holds_its_upper_edge(values, counts):
    assert count_bins(np.array(values), 0.0, 1.0, 4).counts == counts

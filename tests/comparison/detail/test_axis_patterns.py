import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.axes import AxisSums
from precflow.comparison.detail.axis_patterns import describe_patterns, find_patterns, format_percent
from precflow.comparison.detail.boxes import cut_boxes

SHAPE = (3, 77, 768)


def where(errors):
    sums = AxisSums(errors.shape)
    for box in cut_boxes(errors.shape):
        sums.add(box, errors.reshape(-1)[box.start : box.stop] ** 2)
    return describe_patterns(find_patterns(sums), sums.sizes)


def noise(scale=1e-8):
    return np.random.default_rng(0).standard_normal(SHAPE) * scale


CASES = [
    ((slice(None), slice(None), 17), "one position (index 17 of axis 2) carries 99.99 %"),
    ((slice(None), slice(64, None)), "the last 13 positions of axis 1 carry 99.99 %"),
    ((slice(None), slice(0, 5)), "the first 5 positions of axis 1 carry 99.99 %"),
    ((slice(None), slice(30, 40)), "positions 30 to 39 of axis 1 carry 99.99 %"),
    ((slice(None), slice(None), [1, 100, 700]), "3 of 768 positions of axis 2 (index 1, index 100, index 700) carry 99.99 %"),
    ((slice(None), slice(None), slice(3, None, 8)), "every eighth position of axis 2, from 3 on, carries 99.99 %"),
    ((1, 2, 3), "one element [1, 2, 3] carries 99.99 %"),
    ((1,), "one position (index 1 of axis 0) carries 99.99 %"),
    ((slice(None),), "everywhere alike"),
]


@pytest.mark.parametrize(("index", "text"), CASES, ids=[text[:20] for _, text in CASES])
def test_a_fault_is_placed_although_there_is_noise(index, text):
    errors = noise()
    errors[index] += 1e-3
    assert where(errors) == text


def test_noise_alone_is_everywhere_alike():
    assert where(noise()) == "everywhere alike"


def test_two_axes_are_both_told():
    errors = noise()
    errors[:, 5, 100:200] += 1
    assert where(errors).startswith("one position (index 5 of axis 1) carries 100 %")
    assert "positions 100 to 199 of axis 2" in where(errors)


def test_a_peak_that_is_not_all_of_it_is_uneven():
    errors = np.ones(SHAPE)
    errors[:, 7] *= 5
    assert where(errors) == "uneven along axis 1: 25 % at index 7, 19.1 times its even share"


def test_no_error_and_one_element():
    assert where(np.zeros(SHAPE)) == "no error"
    assert where(np.ones((1, 1))) == "there is one element only"


@given(st.integers(0, 2), st.integers(0, 76), st.integers(0, 767))
def test_any_single_element_is_found(batch, token, feature):
    errors = np.zeros(SHAPE)
    errors[batch, token, feature] = 0.5
    assert where(errors) == f"one element [{batch}, {token}, {feature}] carries 100 %"


@given(st.floats(0, 1))
def test_only_all_of_it_is_a_hundred_percent(share):
    assert (format_percent(share) == "100 %") == (share >= 1 - 1e-12)

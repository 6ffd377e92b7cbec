import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail import axes
from precflow.comparison.detail.axes import AxisSums
from precflow.comparison.detail.boxes import cut_boxes

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def summed(squares, block):
    sums = AxisSums(squares.shape)
    for box in cut_boxes(squares.shape, block):
        sums.add(box, squares.reshape(-1)[box.start : box.stop])
    return sums


@given(SHAPES, st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_sums_along_every_axis_are_those_of_numpy(shape, block, seed):
    squares = np.random.default_rng(seed).random(shape)
    found = summed(squares, block)
    for axis in range(len(shape)):
        others = tuple(other for other in range(len(shape)) if other != axis)
        np.testing.assert_allclose(found.sums[axis], squares.sum(axis=others), rtol=1e-12)
        assert found.shares(axis).sum() == pytest.approx(1)


@pytest.mark.parametrize("block", [3, 7, 1000])
def test_neighbours_of_a_long_axis_count_together(monkeypatch, block):
    monkeypatch.setattr(axes, "MOST_GROUPS", 10)
    squares = np.arange(46.0)
    found = summed(squares.reshape(23, 2), block)
    assert found.steps == (3, 1)
    wanted = [squares[6 * group : 6 * group + 6].sum() for group in range(8)]
    np.testing.assert_allclose(found.sums[0], wanted)
    first, last, share = found.axes()[0].top[0]
    assert (first, last) == (18, 20)
    assert share == pytest.approx(wanted[6] / squares.sum())


def test_parts_merge():
    first, second = summed(np.ones((2, 3)), 4), summed(np.full((2, 3), 2.0), 4)
    first.merge(second)
    np.testing.assert_array_equal(first.sums[0], [9, 9])


def test_a_profile_is_short_and_whole():
    squares = np.zeros(1000)
    squares[990:] = 1
    axis = summed(squares, 100).axes()[0]
    assert len(axis.profile) == axes.PROFILE
    assert sum(axis.profile) == pytest.approx(1)
    assert axis.profile[-1] == pytest.approx(1)
    assert [top[0] for top in axis.top] == [990, 991, 992, 993, 994]


def test_no_error_has_no_top_and_no_profile():
    axis = summed(np.zeros((3, 2)), 4).axes()[1]
    assert (axis.top, axis.profile, axis.size) == ((), (), 2)

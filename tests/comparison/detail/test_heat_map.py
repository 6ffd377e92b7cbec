import numpy as np
import pytest

from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.heat_map import MOST_COLUMNS, MOST_ROWS


def heat_of(shape, wrong, block=1 << 17):
    """The heat map of a tensor whose error is 1 at an index, and 0 elsewhere."""
    reference = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    target = reference.copy()
    target[wrong] += 1
    return examine(reference, target, block=block).heat


@pytest.mark.parametrize("block", [7, 100, 1 << 17])
def test_a_head_that_is_wrong_at_some_tokens_is_one_row_of_cells(block):
    heat = heat_of((2, 6, 20, 4), np.s_[:, 3, 10:], block)
    shares = np.array(heat.shares)
    assert (heat.axes, heat.sizes, shares.shape) == ((1, 2), (6, 20), (6, 20))
    assert shares.sum() == pytest.approx(1)
    assert shares[3, 10:] == pytest.approx(0.1)
    assert np.count_nonzero(shares) == 10


def test_long_axes_are_cut_into_stretches_that_hold_every_position():
    heat = heat_of((50, 77), np.s_[:, :])
    shares = np.array(heat.shares)
    assert shares.shape == (MOST_ROWS, MOST_COLUMNS)
    assert shares.sum() == pytest.approx(1)
    assert shares.min() > 0


def test_there_is_none_without_two_axes_and_without_an_error():
    assert heat_of((12,), 3) is None
    assert heat_of((5, 1), 3) is None
    assert heat_of((), ()) is None
    assert heat_of((4, 5), np.s_[:0]) is None


def test_it_is_that_of_a_plain_sum():
    random = np.random.default_rng(3)
    reference = random.standard_normal((3, 4, 5, 6))
    target = reference + random.standard_normal(reference.shape)
    squares = ((target - reference) ** 2).sum(axis=(0, 3))
    assert np.array(examine(reference, target, block=11).heat.shares) == pytest.approx(squares / squares.sum())

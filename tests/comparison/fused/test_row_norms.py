"""Rows and how tensors are cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.fused.row_norms import MOST_ROWS, RowNorms, row_length, split_at_rows


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 60), st.integers(1, 90))
def test_pieces_cover_a_range_once_and_keep_rows(start, count, length, block):
    cut = list(split_at_rows(start, start + count, length, block))
    assert [first for first, _ in cut] == [start, *(last for _, last in cut)][: len(cut)]
    assert not cut or cut[-1][1] == start + count
    for first, last in cut:
        whole_rows = first % length == 0 and (last - first) % length == 0
        assert 0 < last - first <= block
        assert whole_rows or first // length == (last - 1) // length


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), 1), ((0,), 1), ((7,), 7), ((2, 3), 3), ((5, 0), 1), ((1 << 21, 2), 4), ((MOST_ROWS, 5), 5), ((3, 1), 1)],
)
def test_row_length(shape, expected):
    assert row_length(shape) == expected
    assert np.prod(shape) / expected <= MOST_ROWS


def test_the_worst_row_is_found_among_good_ones():
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((100, 8))
    difference = np.full((100, 8), 1e-9)
    difference[42] = 0.5
    norms = RowNorms(0, np.linalg.norm(difference, axis=1), np.linalg.norm(reference, axis=1))
    scale = max(norms.reference[42], np.median(norms.reference))
    assert norms.worst() == pytest.approx(np.sqrt(8 * 0.25) / scale)


def test_a_tiny_row_is_measured_by_the_median():
    norms = RowNorms(0, np.array([1e-3, 0.0, 0.0]), np.array([1e-9, 1.0, 2.0]))
    assert norms.worst() == 1e-3


def test_the_median_is_of_rows_that_are_not_zero():
    norms = RowNorms(0, np.array([1e-3, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, 4.0]))
    assert (norms.median(), norms.worst(), norms.peak()) == (2.5, 1e-3 / 2.5, 4 / 2.5)


def test_empty_and_zero_rows():
    assert RowNorms().peak() == RowNorms(0, np.zeros(3), np.zeros(3)).peak() == 0.0
    assert RowNorms().worst() == 0.0
    assert RowNorms(0, np.zeros(3), np.zeros(3)).worst() == 0.0
    assert RowNorms(0, np.array([0.0, 1.0, 0.0]), np.zeros(3)).worst() == np.inf


@pytest.mark.parametrize("middle", [1e-300, 5e-324])
def test_a_quotient_that_leaves_float64_is_infinite_and_warns_of_nothing(middle):
    norms = RowNorms(0, np.array([0.0, 1e200, 1.0]), np.full(3, middle))
    assert norms.worst() == np.inf


def test_parts_of_one_row_add_up():
    first = RowNorms(2, np.array([1.0, 3.0]), np.array([1.0, 4.0]))
    second = RowNorms(3, np.array([4.0, 5.0]), np.array([3.0, 6.0]))
    for total in (first + second, second + first):
        assert total.first == 2
        assert total.difference.tolist() == [1.0, 5.0, 5.0]
        assert total.reference.tolist() == [1.0, 5.0, 6.0]
    assert (RowNorms() + first) is first
    assert (first + RowNorms()) is first

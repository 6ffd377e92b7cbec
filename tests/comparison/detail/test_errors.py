import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.axes import AxisSums
from precflow.comparison.detail.boxes import cut_boxes
from precflow.comparison.detail.errors import (
    MOST,
    Errors,
    UlpCounts,
    WorstElements,
    count_ulps,
    find_first,
    find_worst,
    measure_box,
    measure_differences,
    measure_equal_block,
)


def errors_of(reference, target, block=1000):
    reference, target = np.asarray(reference), np.asarray(target)
    inexact = reference.dtype.kind not in "iub" or target.dtype.kind not in "iub"
    sums, total = AxisSums(reference.shape), Errors()
    for box in cut_boxes(reference.shape, block):
        part = slice(box.start, box.stop)
        found = measure_differences(reference[part], target[part], inexact=inexact)
        if isinstance(found, int):
            total += measure_equal_block(reference[part], inexact=inexact)
        else:
            total += measure_box(found, box, sums, 8.0, total)
    return total, sums


def test_errors_are_ranked_counted_and_placed():
    found, sums = errors_of([1.0, 2.0, 0.0, 4.0], [1.0, 2.5, 1.0, 4.5])
    assert (found.unequal, found.first, found.mismatched) == (3, 1, ())
    assert (found.absolute.places, found.absolute.figures) == ((2, 1, 3), (1.0, 0.5, 0.5))
    assert found.relative.places == (1, 3)  # 0 has no relative error
    assert (found.sizes.zero, dict(found.sizes.exponents)) == (1, {-1: 2, 0: 1})
    assert sum(found.ulps.counts) == 3
    np.testing.assert_allclose(sums.shares(0), np.array([0, 0.25, 1, 0.25]) / 1.5)


def test_values_of_other_classes_are_told_and_left_out():
    found, _ = errors_of([1.0, np.nan, np.nan, -np.inf, -1e30, 2.0], [1.5, 1.0, np.nan, np.inf, 3.0, 2.0])
    assert found.mismatched == (1, 3, 4)
    assert (found.unequal, found.absolute.places, found.sizes.zero) == (4, (4, 0), 1)
    assert sum(found.ulps.counts) == 3


def test_equal_masks_are_no_error():
    found, _ = errors_of([1.0, -np.inf, -np.inf], [2.0, -np.inf, -1e30])
    assert (found.mismatched, found.unequal, found.sizes.zero) == ((), 2, 0)


def test_a_block_of_equal_bits_is_counted_without_a_difference():
    found, sums = errors_of(np.float32([1, 0, np.nan, -1e9]), np.float32([1, 0, np.nan, -1e9]))
    assert (found.unequal, found.sizes.zero, found.ulps.counts) == (0, 2, (1,))
    assert not sums.sums[0].any()


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_first_differing_element_is_that_of_the_first_block(block):
    found, _ = errors_of([0, 1, 2, 3, 9], [0, 1, 2, 4, 8], block)
    assert (found.first, found.unequal, found.absolute.places) == (3, 2, (3, 4))


def test_integers_are_exact_beyond_float64():
    found, _ = errors_of(np.array([2**62, 5, 0]), np.array([2**62 + 1, 5, 0]))
    assert (found.unequal, found.absolute.figures, found.ulps.counts) == (1, (1.0,), ())
    both, _ = errors_of(np.array([2**63, 1], np.uint64), np.array([-1, 1], np.int64))
    assert both.absolute.figures == (2.0**63,)


def test_booleans_differ_by_one():
    found, _ = errors_of([True, False], [False, False])
    assert (found.unequal, found.absolute.figures) == (1, (1.0,))


def test_zero_and_minus_zero_are_the_same_value():
    found, _ = errors_of([0.0, 1.0], [-0.0, 1.0])
    assert found.unequal == 0


DISTANCES = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)), max_size=40)


@given(DISTANCES)
def test_every_distance_is_in_its_class(distances):
    rows = count_ulps(np.array(distances, np.uint32)).rows()
    assert sum(count for _, _, count in rows) == len(distances)
    for low, high, count in rows:
        assert count == sum(low <= distance <= high for distance in distances)


@given(DISTANCES, st.integers(0, 40))
def test_parts_add_up(distances, cut):
    whole = np.array(distances, np.uint64)
    assert count_ulps(whole[:cut]) + count_ulps(whole[cut:]) == count_ulps(whole)


@given(DISTANCES)
def test_the_median_is_in_its_class(distances):
    low, high = count_ulps(np.array(distances, np.uint64)).median()
    middle = sorted(distances)[(len(distances) - 1) // 2] if distances else 0
    assert low <= middle <= high


@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_width_up_to_its_largest(width):
    found = count_ulps(np.array([0, np.iinfo(width).max], width))
    assert found.counts[0] == 1
    assert found.counts[-1] == 1
    assert sum(found.counts) == 2


def test_no_element_has_no_class():
    assert count_ulps(np.zeros(0, np.uint32)) == UlpCounts()
    assert UlpCounts().median() == (0, 0)


FIGURES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, float("inf")]), max_size=60)


def oracle(figures):
    order = sorted((place for place, figure in enumerate(figures) if figure > 0), key=lambda place: (-figures[place], place))
    return WorstElements(tuple(figures[place] for place in order[:MOST]), tuple(order[:MOST]))


@given(FIGURES)
def test_the_largest_come_first_and_of_equals_the_first(figures):
    assert find_worst(np.array(figures), 0) == oracle(figures)


@given(FIGURES, st.integers(0, 60))
def test_parts_give_the_worst_of_the_whole(figures, cut):
    first = find_worst(np.array(figures[:cut]), 0)
    second = find_worst(np.array(figures[cut:]), len(figures[:cut]), first.floor)
    assert first + second == oracle(figures)


def test_a_floor_keeps_out_what_does_not_lie_above_it():
    assert find_worst(np.array([1.0, 2.0, 3.0]), 100, 2.0) == WorstElements((3.0,), (102,))
    assert find_worst(np.array([1.0]), 0, 1.0) == WorstElements()
    assert WorstElements((3.0,), (0,)).floor == 0


def test_the_first_places_of_a_mask():
    assert find_first(np.array([False, True, True, True]), 10, most=2) == (11, 12)

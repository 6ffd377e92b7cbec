import numpy as np
import pytest

from precflow.comparison.detail.axes import AxisSums
from precflow.comparison.detail.boxes import boxes
from precflow.comparison.detail.errors import Errors, box_errors, differences, equal_errors


def errors_of(reference, target, block=1000):
    reference, target = np.asarray(reference), np.asarray(target)
    inexact = reference.dtype.kind not in "iub" or target.dtype.kind not in "iub"
    sums, total = AxisSums(reference.shape), Errors()
    for box in boxes(reference.shape, block):
        part = slice(box.start, box.stop)
        found = differences(reference[part], target[part], inexact=inexact)
        if isinstance(found, int):
            total += equal_errors(reference[part], inexact=inexact)
        else:
            total += box_errors(found, box, sums, 8.0, total)
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

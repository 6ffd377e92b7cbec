import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.boxes import cut_boxes, unravel

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(SHAPES, st.integers(1, 40))
def test_boxes_are_the_tensor_once_and_in_order(shape, block):
    place = 0
    for box in cut_boxes(shape, block):
        assert box.start == place
        assert 0 < math.prod(box.shape) <= block
        place = box.stop
    assert place == math.prod(shape)


@given(SHAPES, st.integers(1, 40))
def test_a_box_says_where_it_lies(shape, block):
    numbers = np.arange(math.prod(shape)).reshape(shape or (1,))
    for box in cut_boxes(shape, block):
        rows = numbers[box.outer][box.first : box.first + box.shape[0]]
        assert rows.shape == box.shape
        assert list(rows.reshape(-1)) == list(range(box.start, box.stop))


def test_parts_of_a_long_axis_are_about_equally_long():
    assert [box.shape for box in cut_boxes((131_073,), 131_072)] == [(65_537,), (65_536,)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (1, 5, 1)])
def test_a_flat_number_becomes_its_index(shape):
    for number in range(math.prod(shape)):
        assert unravel(number, shape) == tuple(int(place) for place in np.unravel_index(number, shape))

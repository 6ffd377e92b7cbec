"""Arguments of calls that are seen in another size have the other side's sizes, and nothing else of it."""

import pytest

from precflow.dumps.views.sizes import take_sizes


def whole(sizes, size):
    return sum(sizes) == size


def of_all(sizes, size):
    return (*sizes, size) == (2, 1)


@pytest.mark.parametrize("operator", ["softmax", "transpose", "add", ""])
def test_an_axis_is_no_size_though_its_number_would_fit(operator):
    assert take_sizes(operator, [{"dim": "1"}, {"dim": "1"}], {"dim": "2"}, whole) == {"dim": "1"}
    assert take_sizes(operator, [{"dim": "2"}], {"dim": "1"}, of_all) == {"dim": "2"}


@pytest.mark.parametrize("operator", ["view", "expand", "aten.reshape", "arange"])
def test_sizes_are_those_of_the_whole(operator):
    assert take_sizes(operator, [{"0": "2"}, {"0": "1"}], {"0": "3"}, whole) == {"0": "3"}
    assert take_sizes(operator, [{"0": "(2, 4)"}], {"0": "(1, 4)"}, of_all) == {"0": "(1, 4)"}


def test_what_is_neither_equal_nor_a_size_stays():
    parts = [{"0": "(2, 5)", "dtype": "'float32'"}, {"0": "(2, 5)", "dtype": "'float32'"}]
    assert take_sizes("view", parts, {"0": "(4, 6)", "dtype": "'float16'"}, whole) == parts[0]

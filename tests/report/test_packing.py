import math
import random

import numpy as np
import pytest
from page_columns import Columns

from precflow.report.packing import Packer, split_decimals


def read_back(add, read, *given):
    """What comes back of a column."""
    packer = Packer()
    columns = Columns(packer.finish({"column": add(packer, *given)}))
    return read(columns, columns.head["column"])


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("values", [[], [0], [0, 0, 0], [7, 3, 255, 256, 65_536, 2**31 - 1, 0], list(range(1000))])
def test_whole_numbers_come_back(values, steps):
    assert list(read_back(lambda packer, these: packer.add_wholes(these, steps=steps), Columns.wholes, values)) == values


TEXTS = [
    *("layers.0 / linear", "layers.1 / linear", "layers.12 / linear", "", "0", "007", "1e-05", "a1b22c333", "层 3", "x" * 300),
    *("1" * 30, "1.2.3.4.5.6.7.8.9.10.11.12", "</script>", "-5", "2147483648", "layers.0 / linear"),
]


def test_texts_come_back_and_control_characters_are_visible():
    assert read_back(Packer.add_texts, Columns.texts, TEXTS) == TEXTS
    assert read_back(Packer.add_texts, Columns.texts, ["a\x00b7", "lone\ud800"]) == [r"a\x00b7", r"lone\ud800"]
    assert read_back(Packer.add_texts, Columns.texts, []) == []


def test_a_million_names_take_hardly_more_room_than_one():
    names = [f"encoder.layers.{number % 48} / linear.{number % 7} (step {number // 48})" for number in range(100_000)]
    packer = Packer()
    assert len(packer.finish({"names": packer.add_texts(names)})) < 10_000


def test_numbers_come_back_with_the_digits_that_a_page_shows():
    chance = random.Random(3)
    values = [chance.choice([-1, 1]) * 10 ** chance.uniform(-320, 300) for _ in range(3000)]
    values += [1 - 10 ** chance.uniform(-9, -2.1) for _ in range(300)]
    values += [0.0, 1.0, 9.9996, 9.99949, 1e-300, 5e-324, 1.7e308, 1e300, 999.95, 344_912.0, -0.0]
    for value, found in zip(values, read_back(Packer.add_numbers, Columns.numbers, values), strict=True):
        distance = 1 - value if 0.99 < value < 1 else abs(value)
        # A subnormal number has fewer than four digits itself.
        assert abs(found - value) <= 0.000501 * distance + 5e-324, value


def test_what_is_no_number_comes_back():
    values = [None, math.nan, math.inf, -math.inf, 0.0]
    found = read_back(Packer.add_numbers, Columns.numbers, values)
    assert found[0] is None
    assert math.isnan(found[1])
    assert found[2:] == values[2:]


def test_fewer_digits_are_rounded_from_the_number_itself():
    kinds, figures = split_decimals(np.array([1.2349, 0.099951, 1 - 1.26e-5]), np.array([2, 3, 2]))
    assert list(figures) == [1200, 1000, 1300]
    assert list(kinds % 1000 - 500) == [0, -1, -5]

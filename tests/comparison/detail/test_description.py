import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.description import as_reals, as_scalar, describe, split_blocks
from precflow.dumps.dtypes import NUMPY_DTYPES


def test_a_tensor_is_described():
    values = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
    (found,) = describe([values])
    assert (found.dtype, found.shape) == ("float32", (4, 5))
    assert found.extent.ordinary == sum(found.values.counts) == 20
    assert (found.values.low, found.values.high) == (-1, 1)
    assert found.first[0] == "-1.0"
    assert found.last[-1] == "1.0"
    assert len(found.first) == len(found.last) == 6


def test_a_short_tensor_is_shown_once():
    (found,) = describe([np.arange(4)])
    assert (found.first, found.last) == (("0", "1", "2", "3"), ())
    (found,) = describe([np.arange(8)])
    assert found.last == ("6", "7")


def test_histograms_of_two_have_one_range_and_leave_out_what_is_not_ordinary():
    first, second = describe([np.array([0.0, np.nan, 1.0]), np.array([-1e30, 4.0, np.inf])])
    assert (first.values.low, first.values.high) == (second.values.low, second.values.high) == (0, 4)
    assert (sum(first.values.counts), sum(second.values.counts)) == (2, 1)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_no_element_has_no_histogram(shape):
    (found,) = describe([np.zeros(shape)])
    assert (found.values.counts, found.first, found.extent.elements) == ((), (), 0)


def test_complex_numbers_are_pairs_of_reals():
    values = np.array([1 - 2j, 3j], np.complex64)
    assert list(as_reals(values)) == [1, -2, 0, 3]
    (found,) = describe([values])
    assert (found.extent.elements, found.extent.minimum, found.first) == (4, -2, ("1-2j", "3j"))


@given(st.integers(0, 50), st.integers(1, 60))
def test_blocks_change_nothing(size, block):
    values = np.random.default_rng(size).standard_normal(size)
    assert [list(part) for part in split_blocks(values, block)] == [
        list(values[at : at + block]) for at in range(0, size, block)
    ]
    (found,), (whole,) = describe([values], block=block), describe([values])
    assert found.values == whole.values
    assert (found.extent.minimum, found.extent.maximum) == (whole.extent.minimum, whole.extent.maximum)


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_every_element_is_written_so_that_it_can_be_read_back(name):
    dtype = NUMPY_DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, 400 * dtype.itemsize, np.uint8)
    values = (raw[::1] % 2).astype(bool) if name == "bool" else raw.view(dtype)
    for value in values:
        text = as_scalar(value)
        again = {"True": 1, "False": 0}.get(text) if name == "bool" else complex(text) if "complex" in name else text
        kind = int if "int" in name else float if "float" in name else lambda number: number
        assert np.array_equal(
            np.array([kind(again)]).astype(dtype), np.array([value]), equal_nan="float" in name or "c" in name
        )


def test_bfloat16_is_written_short():
    assert [as_scalar(value) for value in np.array([0.1, 1e30, 3], NUMPY_DTYPES["bfloat16"])] == ["0.1", "1e+30", "3"]

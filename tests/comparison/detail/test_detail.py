import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.quantiles import compare_quantiles
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES

SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple)
ELEMENTS = st.floats(-100, 100, width=32) | st.sampled_from([np.nan, np.inf, -np.inf, -1e30, 0.0])


@st.composite
def pairs(draw):
    shape = draw(SHAPES)
    reference = draw(arrays.arrays(np.float32, shape, elements=ELEMENTS))
    target = draw(st.just(reference) | arrays.arrays(np.float32, shape, elements=ELEMENTS))
    return reference, target


@given(pairs(), st.integers(1, 40), st.integers(1, 3))
def test_everything_agrees_with_a_plain_computation(pair, block, threads):
    reference, target = pair
    found = examine(reference, target, threads=threads, block=block)
    y, x = reference.astype(float), target.astype(float)
    compared = np.isfinite(y) & np.isfinite(x) & ~((y == x) & (y < -1e8))
    distance = np.where(compared, np.abs(np.where(compared, x, 0) - np.where(compared, y, 0)), 0)
    unequal = (y != x) & ~(np.isnan(y) & np.isnan(x))
    assert found.unequal == unequal.sum()
    assert (found.first is None) == (not unequal.any())
    if found.first:
        assert found.first.index == tuple(int(place) for place in np.argwhere(unequal)[0])
    assert found.exact == (compared & (distance == 0)).sum()
    assert found.exact + sum(count for _, _, count in found.error_bins) == compared.sum()
    errors = [element.error for element in found.worst_absolute]
    assert errors == sorted((float(error) for error in distance[distance > 0]), reverse=True)[:10]
    for element in found.worst_absolute:
        assert distance[element.index] == element.error
        assert (float(element.reference), float(element.target)) == (reference[element.index], target[element.index])
    total = (distance**2).sum()
    for axis, size in zip(found.axes, reference.shape, strict=False):
        assert axis.size == size
        if total:
            along = (distance**2).sum(axis=tuple(other for other in range(y.ndim) if other != axis.number)) / total
            assert axis.top[0][2] == pytest.approx(along.max(), rel=1e-9)
            assert sum(axis.profile) == pytest.approx(1)


@pytest.mark.parametrize("name", [*FLOATS, "int64", "uint8", "bool", "complex64", "complex128"])
def test_every_type_is_examined(name):
    reference = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY_DTYPES[name])
    target = reference.copy()
    target[1, 1] = 1
    found = examine(reference, target)
    assert (found.unequal, found.first.index[:2], found.worst_absolute[0].error) == (1, (1, 1), 1)
    assert found.where.startswith("one element [1, 1")
    assert bool(found.ulps) == (name not in {"int64", "uint8", "bool"})


def test_a_pair_of_two_types():
    reference = np.linspace(0.5, 1, 64, dtype=np.float32)
    found = examine(reference, reference.astype(np.float16))
    assert (found.reference.dtype, found.target.dtype) == ("float32", "float16")
    assert found.ulps[-1][1] <= 1
    assert found.metrics["relative_l2"] < 2**-10


def test_threads_and_blocks_change_no_bit_of_what_is_ranked():
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((40, 50, 20)).astype(np.float32)
    target = reference + rng.standard_normal(reference.shape).astype(np.float32) * 1e-3
    one, many = examine(reference, target, threads=1, block=64), examine(reference, target, threads=4, block=64)
    assert one == many


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_tensors_without_axes_or_elements(shape):
    reference = np.full(shape, 1.0)
    found = examine(reference, reference + 1)
    assert found.where == ("there is one element only" if shape == () else "no element")
    assert [element.index for element in found.worst_absolute] == ([()] if shape == () else [])


def test_what_has_no_size_is_told_first():
    reference = np.ones((4, 4), np.float32)
    target = reference.copy()
    target[0, 0], target[2, 1] = np.nan, 3
    found = examine(reference, target)
    assert found.where.startswith("1 elements are NaN, infinite or a mask's fill on one side only; one element [2, 1]")
    assert math.isnan(found.mismatched[0].error)
    assert found.mismatched[0].target == "nan"


def test_equal_tensors_have_no_error():
    values = np.array([1.0, np.nan, -np.inf])
    assert examine(values, values).where == "no error"


def test_the_largest_numbers_do_not_overflow():
    large = np.full((2, 3), 8e307)
    found = examine(large, large / 2)
    assert math.isfinite(found.axes[0].top[0][2])
    assert sum(found.axes[1].profile) == pytest.approx(1)


@pytest.mark.filterwarnings("error")
def test_a_difference_that_overflows_is_where_the_error_is():
    reference, target = np.ones((4, 6)), np.ones((4, 6))
    reference[1, 2], target[1, 2], target[0, 0] = 1.7e308, -1.7e308, 3.0
    found = examine(reference, target)
    assert found.heat.shares[1][2] == 1.0
    assert sum(map(sum, found.heat.shares)) == pytest.approx(1.0)
    quantiles = compare_quantiles(reference, target)
    assert quantiles.found[0] == 0.0
    assert quantiles.found[-1] == np.finfo(np.float64).max


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\[2\]"):
        examine(np.zeros(2), np.zeros(3))


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 27)
    values = np.memmap(path, np.float32, mode="r").view(np.ndarray)
    examine(values[:1000], values[:1000])
    tracemalloc.start()
    found = examine(values, values, threads=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.exact == 1 << 25
    assert peak < 40e6

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from precflow.comparison.detail.extent import Extent, mean, measure_extent, merge_extents, norm
from precflow.dumps.dtypes import NUMPY_DTYPES

VALUES = arrays.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32))
FEW = arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e3, 1e3))


def everything(one):
    return {**counts(one), "minimum": one.minimum, "maximum": one.maximum, "mean": mean(one), "norm": norm(one)}


def counts(one):
    names = "elements nan positive_infinity negative_infinity sentinel zero saturated ordinary"
    return {name: getattr(one, name) for name in names.split()}


def test_every_class_of_values_is_counted_and_kept_out_of_sums():
    limit = np.finfo(np.float32)
    found = measure_extent(
        np.array([1, -3, 0, -0.0, np.nan, np.inf, -np.inf, -np.inf, limit.min, limit.max, -65504], np.float32)
    )
    assert counts(found) == {
        "elements": 11,
        "nan": 1,
        "positive_infinity": 1,
        "negative_infinity": 2,
        "sentinel": 3,
        "zero": 2,
        "saturated": 2,
        "ordinary": 4,
    }
    assert (found.minimum, found.maximum, float(found.total), mean(found)) == (-3, 1, -2, -0.5)
    assert norm(found) == pytest.approx(math.sqrt(10))


@given(FEW)
def test_sums_are_those_of_numpy(values):
    found = measure_extent(values)
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    assert mean(found) == pytest.approx(values.mean(), rel=1e-9, abs=1e-9)
    assert norm(found) == pytest.approx(np.linalg.norm(values), rel=1e-12)


@given(VALUES, st.integers(1, 60))
def test_parts_make_the_whole(values, cut):
    parts = everything(merge_extents([measure_extent(values[:cut]), measure_extent(values[cut:])]))
    assert parts == pytest.approx(everything(measure_extent(values)), rel=1e-12, abs=1e-300, nan_ok=True)


@pytest.mark.parametrize("name", [name for name in NUMPY_DTYPES if not name.startswith("complex")])
def test_every_type_is_read(name):
    found = measure_extent(np.array([0, 1, 1], NUMPY_DTYPES[name]))
    assert (found.minimum, found.maximum, found.zero, found.ordinary) == (0, 1, 1, 3)


def test_squares_neither_overflow_nor_vanish():
    assert norm(measure_extent(np.array([3e-200, 4e-200]))) == pytest.approx(5e-200)
    large = measure_extent(np.array([3e7, 4e7]))
    assert norm(large) == pytest.approx(5e7)


def test_nothing_has_no_extremes_and_no_mean():
    assert measure_extent(np.zeros(0)) == Extent()
    assert math.isnan(mean(Extent()))
    assert norm(Extent()) == 0
    assert measure_extent(np.array([np.nan])).minimum == math.inf

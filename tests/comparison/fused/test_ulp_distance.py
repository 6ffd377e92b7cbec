"""Units in the last place, against counting with nextafter and against every bit pattern."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.fused.ulp_distance import ulp_distances
from precflow.dumps.dtypes import NUMPY_DTYPES


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("start", [1.0, 0.0, -1.0, -0.0, 0.25])
def test_steps_of_nextafter_are_counted(name, steps, start):
    dtype = NUMPY_DTYPES[name]
    end = np.array([start], dtype)
    for _ in range(steps):
        end = np.nextafter(end, np.array([8], dtype))
    assert ulp_distances(np.array([start], dtype), end, name)[0] == steps


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_neighbours_are_one_apart_over_the_whole_range(name):
    values = np.arange(65536, dtype=np.uint16).view(NUMPY_DTYPES[name])
    finite = values[np.isfinite(values.astype(np.float32))]
    ordered = finite[np.argsort(finite.astype(np.float64), kind="stable")]
    apart = ulp_distances(ordered[:-1], ordered[1:], name)
    equal = ordered[:-1].astype(np.float64) == ordered[1:].astype(np.float64)  # -0 and +0
    assert np.array_equal(apart, np.where(equal, 0, 1))


def test_the_ends_of_float64_do_not_wrap():
    largest = np.finfo(np.float64).max
    apart = ulp_distances(np.array([-largest]), np.array([largest]), "float64")[0]
    assert int(apart) == 2 * int(np.array([largest]).view(np.int64)[0])


@given(st.floats(-60000, 60000, width=32))
def test_rounding_to_the_coarser_type_is_free(value):
    fine = np.array([value], np.float32)
    for coarse in (np.float16, ml_dtypes.bfloat16):
        assert ulp_distances(fine, fine.astype(coarse), np.dtype(coarse).name)[0] == 0


def test_beyond_the_coarser_range_counts_as_its_largest_value():
    assert ulp_distances(np.array([1e30], np.float32), np.array([65504], np.float16), "float16")[0] == 0
    assert ulp_distances(np.array([-1e30], np.float32), np.array([-448], ml_dtypes.float8_e4m3fn), "float8_e4m3fn")[0] == 0

"""The compiled classes of a pair against NumPy's, which say what they mean."""

import numba
import numpy as np
import pytest

from precflow.comparison.compiled.classes import sort_out
from precflow.comparison.compiled.layout import CLASS_COUNTS, FIRST_CLASS, TALLIES
from precflow.comparison.compiled.selftest import SPECIAL
from precflow.comparison.values import classify, fill_range, widen
from precflow.dumps.dtypes import NUMPY_DTYPES, float_facts

NAMES = "sentinel nonfinite sentinel_mismatch nonfinite_mismatch infinity_for_sentinel".split()
PATTERNS = {"float32": np.int32, "bfloat16": np.int16, "float16": np.uint16}


@numba.njit
def sorted_out(reference, target, fills, plain_y, plain_x, counts):
    return sort_out(reference, target, fills, plain_y, plain_x, counts)


def by_both(reference, target):
    """Return what either way makes of a pair: excluded places, and counts by name."""
    names = reference.dtype.name, target.dtype.name
    fills = [fill_range(float_facts(name)) for name in names]
    table = np.array([(one.high, one.low, *one.band) for one in fills])
    left, right = (side.view(PATTERNS[name]) for side, name in zip((reference, target), names, strict=True))
    plain, counts = (np.full_like(left, 7), np.full_like(right, 7)), np.zeros(TALLIES, np.int64)
    excluded = sorted_out(left, right, table, *plain, counts)
    y, x = widen(reference), widen(target)
    with np.errstate(invalid="ignore", over="ignore"):
        found = classify(y, x, tuple(fills), same_dtype=names[0] == names[1])
    assert excluded == np.count_nonzero(found.excluded)
    for side, kept in ((left, plain[0]), (right, plain[1])):
        assert np.array_equal(kept, np.where(found.excluded, 0, side))
    return dict(zip(NAMES, counts[FIRST_CLASS : FIRST_CLASS + CLASS_COUNTS].tolist(), strict=True)), found


@pytest.mark.parametrize("first", PATTERNS)
@pytest.mark.parametrize("second", PATTERNS)
def test_every_two_special_values_are_classed_as_numpy_classes_them(first, second):
    with np.errstate(over="ignore"):
        y, x = (np.array((1.0, *SPECIAL), np.float64).astype(NUMPY_DTYPES[name]) for name in (first, second))
    reference, target = np.repeat(y, x.size), np.tile(x, y.size)
    counts, found = by_both(reference, target)
    assert counts == {name: getattr(found, name) for name in NAMES}
    assert counts["nonfinite"] > counts["nonfinite_mismatch"] > 0


def test_ordinary_values_are_all_kept():
    values = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    counts, _ = by_both(values, values * 2)
    assert set(counts.values()) == {0}


def test_values_near_one_another_at_the_edge_of_a_fill_are_no_fill():
    low = np.array([-65504.0, -65504.0], np.float32)
    counts, _ = by_both(low, np.array([-65504.0, -9e4], np.float32))
    assert counts["sentinel"] == 2

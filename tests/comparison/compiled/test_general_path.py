"""The compiled classes of a pair against NumPy's, which say what they mean."""

import itertools

import numba
import numpy as np
import pytest
from amounts import ALL

from precflow.comparison.compiled.engine import _kernel_constants
from precflow.comparison.compiled.general_path import FILL, KEPT, classify_segment, copy_kind
from precflow.comparison.compiled.layout import CLASS_COUNTS, FIRST_CLASS, MEASURED, TALLIES
from precflow.comparison.compiled.selftest import SPECIAL
from precflow.comparison.fused.kernel import pair_facts
from precflow.comparison.fused.value_classes import classify_pairs, widen
from precflow.dumps.dtypes import NUMPY_DTYPES

NAMES = "sentinel nonfinite sentinel_mismatch nonfinite_mismatch infinity_for_sentinel other_fill saturated_mismatch".split()
PATTERNS = {"float32": np.int32, "bfloat16": np.int16, "float16": np.uint16}
PAIRS = [*((name, name) for name in PATTERNS), ("float16", "float32"), ("float32", "bfloat16")]  # sides are read one by one
if ALL:
    PAIRS = list(itertools.product(PATTERNS, PATTERNS))


@numba.njit
def sorted_out(reference, target, fills, kinds, counts, extent):
    return classify_segment(reference, target, fills, kinds, counts, extent)


@numba.njit
def copied(values, kinds, wanted, room):
    copy_kind(values, kinds, wanted, room)


def by_both(reference, target, floors=(0.0, 0.0)):
    """Return what either way makes of a pair: counts by name, and NumPy's classes."""
    names = reference.dtype.name, target.dtype.name
    facts = pair_facts(*names)
    _bounds, bands, types, _rungs = _kernel_constants(facts)
    left, right = (side.view(PATTERNS[name]) for side, name in zip((reference, target), names, strict=True))
    kinds, counts, extent = np.full(left.size, 9, np.uint8), np.zeros(TALLIES, np.int64), np.array([0.0, 0.0, np.inf, np.inf])
    apart, filled, unlike = sorted_out(left, right, (bands, types, np.array(floors)), kinds, counts, extent)
    found = classify_pairs(widen(reference), widen(target), facts.fills, floors)
    assert (apart, filled) == (np.count_nonzero(found.excluded), np.count_nonzero(found.measured))
    assert counts[MEASURED] == filled
    assert unlike == np.count_nonzero(found.measured & (widen(reference) != widen(target)))
    assert extent.tolist() == [*found.largest, *found.least]
    for side in (left, right):
        for wanted, places in ((KEPT, ~found.excluded), (FILL, found.measured)):
            room = np.full_like(side, 7)
            copied(side, kinds, wanted, room)
            assert np.array_equal(room, np.where(places, side, 0))
    return dict(zip(NAMES, counts[FIRST_CLASS : FIRST_CLASS + CLASS_COUNTS].tolist(), strict=True)), found


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_every_two_special_values_are_classed_as_numpy_classes_them(first, second):
    with np.errstate(over="ignore"):
        y, x = (np.array((1.0, *SPECIAL), np.float64).astype(NUMPY_DTYPES[name]) for name in (first, second))
    reference, target = np.repeat(y, x.size), np.tile(x, y.size)
    counts, found = by_both(reference, target)
    assert counts == {name: getattr(found, name) for name in NAMES}
    assert counts["nonfinite"] > counts["nonfinite_mismatch"] > 0
    counts, found = by_both(reference, target, (1e5, 1e10))
    assert counts == {name: getattr(found, name) for name in NAMES}


def test_ordinary_values_are_all_kept():
    values = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    counts, _ = by_both(values, values * 2)
    assert set(counts.values()) == {0}


def test_values_near_one_another_at_the_edge_of_a_fill_are_no_fill():
    low = np.array([-65504.0, -65504.0], np.float32)
    counts, _ = by_both(low, np.array([-65504.0, -9e4], np.float32))
    assert (counts["sentinel"], counts["sentinel_mismatch"]) == (1, 1)
    counts, _ = by_both(low, np.array([-65504.0, -66400.0], np.float32))
    assert (counts["sentinel"], counts["sentinel_mismatch"]) == (1, 0)

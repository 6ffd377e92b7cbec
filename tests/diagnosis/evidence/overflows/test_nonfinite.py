"""NaN, infinity, overflow and saturation, and masked elements on both sides."""

import numpy as np

from precflow.diagnosis.evidence.overflows.nonfinite import MaskedCounts, count_masked, count_nonfinite


def test_sides_are_counted_apart():
    found = count_nonfinite(np.array([np.nan, 1.0, 2.0]), np.array([np.nan, np.inf, 2.0]))
    assert (found.reference, found.target, found.target_only) == (1, 2, 1)
    assert found.overflow_share == 0.0
    assert found.reference_max == 2.0


def test_float16_overflow_is_where_the_reference_is_too_large():
    reference = np.array([1e5, -7e4, 100.0, 65519.0])
    with np.errstate(over="ignore"):
        target = reference.astype(np.float16).astype(np.float64)
    found = count_nonfinite(reference, target)
    assert found.target_only == 2
    assert found.overflow_share > 0.6
    assert found.reference_max == 1e5


def test_saturation_counts_as_overflow():
    assert count_nonfinite(np.array([1e5, 1.0]), np.array([65504.0, 1.0])).overflow_share == 1.0


def test_a_mask_fill_that_becomes_infinite_is_no_overflow():
    assert count_nonfinite(np.array([-3.4028e38, 1.0]), np.array([-np.inf, 1.0])).overflow_share == 0.0


def test_nothing_broken():
    found = count_nonfinite(np.zeros(3), np.zeros(3))
    assert (found.target_only, found.overflow_share, found.reference_max) == (0, 0.0, 0.0)


def test_a_dropped_mask():
    causal = np.triu(np.ones((5, 5), dtype=bool), 1)
    assert count_masked(causal, np.zeros_like(causal)) == MaskedCounts(10, 0, 10)


def test_a_shifted_mask_has_as_many_places_but_other_ones():
    causal = np.triu(np.ones((5, 5), dtype=bool), 1)
    places = count_masked(causal, causal.T)
    assert places.reference == places.target == 10
    assert places.different == 20


def test_equal_masks():
    mask = np.array([True, False])
    assert count_masked(mask, mask).different == 0

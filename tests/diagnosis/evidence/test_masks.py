"""Masked places on both sides."""

import numpy as np

from precflow.diagnosis.evidence.nonfinite import MaskPlaces, mask_places


def test_a_dropped_mask():
    causal = np.triu(np.ones((5, 5), dtype=bool), 1)
    assert mask_places(causal, np.zeros_like(causal)) == MaskPlaces(10, 0, 10)


def test_a_shifted_mask_has_as_many_places_but_other_ones():
    causal = np.triu(np.ones((5, 5), dtype=bool), 1)
    places = mask_places(causal, causal.T)
    assert places.reference == places.target == 10
    assert places.different == 20


def test_equal_masks():
    mask = np.array([True, False])
    assert mask_places(mask, mask).different == 0

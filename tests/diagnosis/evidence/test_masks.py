"""How one mask comes from another."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.masks import describe_mask, measure_masked_rows

CAUSAL = np.triu(np.ones((2, 41, 41), bool), 1)
PADDED = np.zeros((3, 6, 8), bool)
PADDED[0, :, 6:] = PADDED[1, :, 4:] = True


@pytest.mark.parametrize(
    ("reference", "target", "text"),
    [
        (CAUSAL, CAUSAL, ""),
        (CAUSAL, np.zeros_like(CAUSAL), "missing"),
        (np.zeros_like(CAUSAL), CAUSAL, "additional"),
        (CAUSAL, ~CAUSAL, "inverted"),
        (CAUSAL, np.triu(np.ones((2, 41, 41), bool), 2), "moved by 1 along the keys"),
        (CAUSAL, np.triu(np.ones((2, 41, 41), bool), 0), "moved by -1 along the keys"),
        (CAUSAL, np.swapaxes(CAUSAL, -1, -2), "transposed"),
        (np.triu(np.ones((3, 9), bool), 7), np.triu(np.ones((3, 9), bool), 1), "aligned to the other corner"),
        (PADDED, np.broadcast_to(PADDED[:1], PADDED.shape), "that of the first sample for all"),
        (CAUSAL, CAUSAL & (np.arange(41) < 30), "partly missing"),
        (CAUSAL, CAUSAL | (np.arange(41) == 7), "partly additional"),
        (CAUSAL, np.random.default_rng(1).random(CAUSAL.shape) < 0.5, ""),
    ],
)
def test_a_mask_is_described(reference, target, text):
    assert describe_mask(reference, target) == text


def test_rows_that_are_masked_everywhere():
    masked = np.array([[True, True], [True, False], [True, True]])
    assert measure_masked_rows(masked, np.array([True, True, False])) == 0.5
    assert measure_masked_rows(masked, np.zeros(3, bool)) is None

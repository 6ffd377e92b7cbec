"""Whole numbers that began again at the end of a narrower type."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.wraps import find_wrapped_type

COUNTS = np.arange(300, dtype=np.int64)


@pytest.mark.parametrize(
    ("dtype", "at", "scale"),
    [("int8", 128, 1), ("uint8", 256, 1), ("int16", 1 << 15, 200), ("uint16", 1 << 16, 300), ("int32", 1 << 31, 1 << 24)],
)
def test_the_type_is_told_by_its_end(dtype, at, scale):
    right = COUNTS * scale
    assert find_wrapped_type(right.astype(float), right.astype(dtype).astype(float)) == (dtype, at)


@pytest.mark.parametrize("wrong", [COUNTS, COUNTS + 256, np.minimum(COUNTS, 127), COUNTS % 100, COUNTS / 2])
def test_other_differences_are_no_wrap(wrong):
    assert find_wrapped_type(COUNTS.astype(float), wrong.astype(float)) is None

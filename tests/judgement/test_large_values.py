"""Large values from two tensors to a status: they are ordinary numbers, and none passes that differs."""

import numpy as np
import pytest

from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.library import assert_aligned


def tensors(name, first, second, others=1.0):
    """Return two tensors of a type that agree but for one element."""
    values = np.random.default_rng(0).standard_normal((4, 64)) * others
    sides = [values.astype(NUMPY_DTYPES[name]) for _ in range(2)]
    for side, value in zip(sides, (first, second), strict=True):
        side[1, 7] = value
    return sides


@pytest.mark.parametrize(
    ("name", "reference", "target"),
    [
        ("float16", -34000.0, -65504.0),
        ("float16", 40000.0, 40700.0),
        ("float32", -65000.0, -66000.0),
        ("float32", -2e8, -7e11),
        ("float64", 1e300, 1.01e300),
        ("bfloat16", -2e38, -3e38),
        ("float32", 3e38, -3e38),
        ("float64", 1.7e308, -1.7e308),
    ],
)
def test_large_values_are_compared(name, reference, target):
    assert_aligned(*tensors(name, reference, reference))
    with pytest.raises(AssertionError, match="relative_l2"):
        assert_aligned(*tensors(name, target, reference))
    with pytest.raises(AssertionError, match="relative_l2"):
        assert_aligned(*tensors(name, reference, target))

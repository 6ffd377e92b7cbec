"""Traces of a narrower type: values that all fit into it, and errors of its size."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_ENOUGH = 64  # values; fewer fit into a narrow type by chance
_NARROW = (("bfloat16", np.dtype(ml_dtypes.bfloat16)), ("float16", np.dtype(np.float16)))


def narrow_type(values: Array) -> str:
    """Return the narrower type that holds every finite value exactly, ``""`` for none or for too few different values.

    >>> narrow_type(np.linspace(0, 1, 100).astype(np.float16).astype(float))
    'float16'
    >>> narrow_type(np.linspace(0, 1, 100))
    ''
    """
    finite = np.unique(values[np.isfinite(values)])
    if finite.size < _ENOUGH:
        return ""
    return next((name for name, dtype in _NARROW if _fits(finite, dtype)), "")


def error_bits(relative: float) -> float:
    """Return how many bits agree on average: ``-log2`` of a relative error; infinite for none.

    >>> error_bits(2.0**-12)
    12.0
    """
    return math.inf if relative <= 0.0 else -math.log2(relative)


def _fits(values: Array, dtype: np.dtype[np.generic]) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(dtype).astype(np.float64), values))

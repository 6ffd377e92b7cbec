"""One block of a pair of integers or booleans as a :class:`Summary`: equality and differences, exact up to 2^64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.summary import Summary


def summarize_integers(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> Summary:
    """Measure one block; ``difference_max`` is an exact Python integer.

    Args:
        reference: Flat integers or booleans.
        target: As many, possibly of another such type.
    """
    apart = integer_distance(reference, target)
    return Summary(
        elements=reference.size,
        unequal=reference.dtype != target.dtype or bool(apart.any()),
        difference_sum=ScaledFloat.of(float(np.add.reduce(apart, dtype=np.float64))),
        difference_max=int(apart.max()),
    )


def integer_distance(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return |x - y|: as uint64 by wrapping subtraction, as Python integers where uint64 meets a signed type."""
    unsigned = [array.dtype == np.uint64 for array in (reference, target)]
    signed = [array.dtype.kind == "i" for array in (reference, target)]
    if any(unsigned) and any(signed):
        exact: npt.NDArray[Any] = np.abs(target.astype(object) - reference.astype(object))
        return exact
    wide = np.uint64 if any(unsigned) else np.int64
    left, right = reference.astype(wide), target.astype(wide)
    apart: npt.NDArray[Any] = np.maximum(left, right).view(np.uint64) - np.minimum(left, right).view(np.uint64)
    return apart

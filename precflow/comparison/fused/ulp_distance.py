"""Distance in units in the last place: how many representable values lie between two numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.dumps.dtypes import NUMPY_DTYPES, float_facts

Bits = npt.NDArray[Any]  # integers as wide as the floating point type

_SIGNED: dict[int, type[np.signedinteger[Any]]] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def ulp_distances(reference: npt.NDArray[Any], target: npt.NDArray[Any], coarse: str) -> Bits:
    """Return the distance of each pair, as unsigned integers as wide as the type.

    Args:
        reference: Values, floating point.
        target: Values of the same shape, possibly of another type.
        coarse: The coarser of the two types: both are rounded to it first (beyond its range: to its largest value), so that
            a finer side is not charged for digits that the other side cannot hold. -0 and +0 are 0 apart. NaN gives a
            number without meaning.
    """
    left, right = _order(reference, coarse), _order(target, coarse)
    unsigned = _UNSIGNED[left.itemsize]
    apart: Bits = np.maximum(left, right).view(unsigned) - np.minimum(left, right).view(unsigned)
    return apart


def has_equal_bits(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> bool:
    """Tell whether two arrays of one type have the same bits: NaN equals itself then, and -0 is not 0."""
    unsigned = _UNSIGNED[reference.itemsize]
    return np.array_equal(reference.view(unsigned), target.view(unsigned))


def _order(values: npt.NDArray[Any], coarse: str) -> Bits:
    """Return integers in the order of the values, one apart for neighbours: sign and magnitude made two's complement."""
    rounded = values
    if values.dtype.name != coarse:
        largest = float_facts(coarse).largest
        wide = values if values.dtype.kind == "f" else values.astype(np.float32)  # bfloat16 and float8 fit into it exactly
        rounded = np.clip(wide, -largest, largest).astype(NUMPY_DTYPES[coarse])
    signed = _SIGNED[rounded.itemsize]
    bits: Bits = rounded.view(signed)
    sign: Bits = bits >> signed(8 * rounded.itemsize - 1)  # 0, or -1 which is all ones
    magnitude: Bits = bits & signed(2 ** (8 * rounded.itemsize - 1) - 1)
    ordered: Bits = (magnitude ^ sign) - sign
    return ordered

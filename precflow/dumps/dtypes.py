"""Element types by name: their NumPy dtype, whether they are floating point, and the limits of those that are.

Names are torch's without the prefix (``float32``, ``bfloat16``, ``float8_e4m3fn``). bfloat16 and float8 come from
``ml_dtypes``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # of any element type

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint64": np.dtype(np.uint64),
    "uint32": np.dtype(np.uint32),
    "uint16": np.dtype(np.uint16),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
}
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")  # by precision, finest first
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}  # faster than `dtype.name`, which builds a text on each access
_PARTS = {"complex64": "float32", "complex128": "float64"}  # type of the real and the imaginary part
_RANKS = {name: FLOATS.index(_PARTS.get(name, name)) for name in (*FLOATS, *_PARTS)}


@dataclass(frozen=True, slots=True)
class FloatFacts:
    """Precision and range of a floating point type.

    Attributes:
        name: Torch's name.
        digits: Bits of the significand, the hidden one included: 24 for ``float32``.
        largest: Largest finite value.
        smallest_normal: Smallest positive normal value; smaller ones are subnormal.
        smallest: Smallest positive value, which is subnormal.
    """

    name: str
    digits: int
    largest: float
    smallest_normal: float
    smallest: float


@functools.cache
def float_facts(name: str) -> FloatFacts:
    """Return precision and range of a floating point type.

    Raises:
        KeyError: The name is not one of ``FLOATS``.
    """
    if name not in FLOATS:
        raise KeyError(name)
    info: Any = ml_dtypes.finfo(NUMPY_DTYPES[name])  # type: ignore[no-untyped-call]
    normal, smallest = float(info.smallest_normal), float(info.smallest_subnormal)
    return FloatFacts(name, int(info.nmant) + 1, float(info.max), normal, smallest)


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a NumPy element type, or ``""`` if a dump cannot hold it.

    >>> name_of(np.dtype("float32")), name_of(np.dtype("<U3"))
    ('float32', '')
    """
    return _NAMES.get(dtype, "")


def real_part(name: str) -> str:
    """Return the type of the real and imaginary parts of a complex type; other names are returned unchanged.

    >>> real_part("complex64"), real_part("bfloat16")
    ('float32', 'bfloat16')
    """
    return _PARTS.get(name, name)


def is_floating(name: str) -> bool:
    """Tell whether values of a type are rounded numbers: floating point, complex, or quantized, which stands for such numbers.

    This goes by the name, so it also answers for types whose tensors a dump cannot hold, such as ``float8_e4m3fnuz``.

    >>> is_floating("bfloat16"), is_floating("float8_e4m3fnuz"), is_floating("quint8"), is_floating("uint8")
    (True, True, True, False)
    """
    return name.startswith(("float", "bfloat", "complex", "qint", "quint"))


def coarsest(names: Iterable[str]) -> str:
    """Return the least precise of some types, by the order of ``FLOATS``; others are ignored, ``""`` if none is left.

    >>> coarsest(["float32", "float16", "int64", "complex128"])
    'float16'
    """
    ranks = [_RANKS[name] for name in names if name in _RANKS]
    return FLOATS[max(ranks)] if ranks else ""

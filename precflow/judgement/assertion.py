"""``assert_aligned`` for unit tests: two tensors, judged as a run judges a record, with the same words."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.measures import Measure
from precflow.comparison.metrics import measure_all
from precflow.comparison.remarks import counts
from precflow.comparison.summarize import summarize
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import NUMPY_DTYPES, is_floating, name_of
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.decision import Terms, decide


def assert_aligned(actual: Any, expected: Any, *, standard: str = "default") -> None:
    """Raise unless two tensors are aligned by a standard; integers and booleans must be equal.

    Args:
        actual: What the target computed: a NumPy array, a torch tensor on any device, or numbers.
        expected: What the reference computed; all denominators are its.
        standard: Name in ``conf/standard``. The coarser of the two types sets the limits.

    Raises:
        AssertionError: They are not aligned, or nothing could be compared; says why.
        ConfigError: The standard is not known.
        TypeError: An element type cannot be compared.

    >>> assert_aligned([1.0, 2.0], [1.0, 2.0])
    """
    reference, target = as_array(expected), as_array(actual)
    if reference.shape != target.shape:
        raise AssertionError(f"not aligned: shape {list(target.shape)}, expected {list(reference.shape)}")
    left, right = name_of(reference.dtype), name_of(target.dtype)
    if not is_floating(left):
        if left != right or not np.array_equal(reference, target):
            raise AssertionError(f"not aligned: {right} differs from the expected {left}, which must be equal")
        return
    measure = _measure(reference, target)
    terms = Terms(left, right, [standards.load(standard)], Tolerance(standards=(standard,)))
    judged = decide(measure, terms, AcceptedDifferences((), datetime.date.max)).judged
    if judged.status != "pass":
        raise AssertionError(f"not aligned ({judged.status}): {judged.reason}")


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return a tensor as an array of the same type; torch tensors by their bytes, because NumPy has no bfloat16 of its own.

    Raises:
        TypeError: The element type is not one of a dump.
    """
    if hasattr(value, "detach") and hasattr(value, "data_ptr"):
        return _from_torch(value.detach().cpu())
    array = np.asarray(value)
    if not name_of(array.dtype):
        raise TypeError(f"cannot compare elements of type {array.dtype}")
    return array


def _from_torch(tensor: Any) -> npt.NDArray[Any]:
    name = str(tensor.dtype).rpartition(".")[2]
    if name not in NUMPY_DTYPES:
        raise TypeError(f"cannot compare elements of type {tensor.dtype}")
    packed = tensor.resolve_conj().resolve_neg().contiguous()  # alive until its bytes are copied
    size = packed.numel() * packed.element_size()
    data = ctypes.string_at(packed.data_ptr(), size) if size else b""
    return np.frombuffer(data, NUMPY_DTYPES[name]).reshape(tuple(packed.shape))


def _measure(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> Measure:
    summary = summarize(reference, target)
    return Measure(
        record="actual",
        name="actual",
        module="",
        operator="",
        level="module",
        phase="forward",
        order=0,
        join="paired",
        reference_dtype=name_of(reference.dtype),
        target_dtype=name_of(target.dtype),
        reference_shape=reference.shape,
        target_shape=target.shape,
        metrics=measure_all(summary),
        counts=counts(summary),
    )

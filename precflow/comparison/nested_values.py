"""Pairs the tensors of two nested values, such as the outputs of a model on both sides.

Both are walked together, entry by entry, as ``torch.testing.assert_close`` does it. Keys are compared as Python compares them:
``1`` and ``"1"`` are two entries, and so are ``{"a": {"b": x}}`` and ``{"a.b": x}``. The names are for people only.

A text, a path or a member of an enum is no tensor and is compared all the same: equal ones need no word, others are a problem
of their place. What nothing can be said of (a set, an object, a type that no dump can hold) is one too, never an exception:
one such entry of a model's output hides nothing of the others.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import numbers
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precflow.agent.contract import name_keys
from precflow.dumps.dtypes import NUMPY_DTYPES, Array, is_floating, name_of

DEEPEST = 200  # containers inside each other
_ROOT = "value"  # name of a value that is in no container
_NAMED, _ORDERED, _SINGLE, _PLAIN = "named", "ordered", "", "plain"  # sorts of values
_EXPECTED = "expected tensors, numbers, or dicts, lists, tuples and dataclasses of them"
_BY_EQUALITY = (str, bytes, bytearray, os.PathLike, enum.Enum)
_LONGEST = 60  # letters of a value that are shown


@dataclass(frozen=True, slots=True)
class PairedValue:
    """The tensors of both sides at one place, or why they cannot be compared there.

    Attributes:
        name: Path such as ``past.0.key``; ``value`` if no container is around it. No two pairs have the same.
        reference: The reference's tensor; ``None`` if it has none there.
        target: The target's tensor; ``None`` if it has none there.
        problem: Why there are no two tensors to compare; ``""`` for tensors.
        status: What that makes of the place: ``shape`` if the two differ in kind, ``fail`` if they are no tensors and differ,
            ``unreadable`` if nothing can be said of them; ``""`` for tensors.
    """

    name: str
    reference: Array | None = None
    target: Array | None = None
    problem: str = ""
    status: str = ""


def pair_values(reference: Any, target: Any) -> list[PairedValue]:
    """Return every tensor of two nested values with its partner.

    Dicts and dataclasses have their entries by name, lists and tuples by position. Two of the same sort are compared, whatever
    their classes; a dict and a list, or a container and a tensor, are not. A list of plain numbers is one tensor. ``None``, an
    entry that is not there and an empty container have no tensor and need no partner.

    Args:
        reference: What was expected.
        target: What was computed.

    Raises:
        TypeError: The nesting has no end.
    """
    return list(_pair(reference, target, "", 0))


def _pair(reference: Any, target: Any, path: str, depth: int) -> Iterator[PairedValue]:
    name = path or _ROOT
    if depth > DEEPEST:
        raise TypeError(f"{name[:60]}... is nested more than {DEEPEST} deep; does a container hold itself?")
    sorts = [_sort(reference, target), _sort(target, reference)]
    present = [sort for value, sort in zip((reference, target), sorts, strict=True) if value is not None]
    if not present:
        return
    if len(set(present)) > 1:
        problem = f"{_describe(target, sorts[1])}, expected {_describe(reference, sorts[0])}"
        yield PairedValue(name, problem=problem, status="shape")
    elif present[0] == _PLAIN:
        yield from _pair_plain(reference, target, name)
    elif present[0] == _SINGLE:
        yield _pair_tensors(reference, target, name)
    else:
        here, there = _entries(reference), _entries(target)
        keys = list({**here, **there})
        for key, inner in zip(keys, name_keys(keys), strict=True):
            yield from _pair(here.get(key), there.get(key), f"{path}.{inner}" if path else inner, depth + 1)


def _pair_tensors(reference: Any, target: Any, name: str) -> PairedValue:
    try:
        left, right = (None if value is None else as_array(value) for value in (reference, target))
    except TypeError as error:
        return PairedValue(name, problem=str(error), status="unreadable")
    if left is not None and right is not None:
        if hasattr(target, "dtype"):
            left = _take_type(reference, left, right)
        elif hasattr(reference, "dtype"):
            right = _take_type(target, right, left)
    return PairedValue(name, left, right)


def _pair_plain(reference: Any, target: Any, name: str) -> Iterator[PairedValue]:
    """Yield what is wrong with two values that are no tensors; nothing if they are equal."""
    if reference is None or target is None:
        side, value = ("reference", reference) if target is None else ("target", target)
        yield PairedValue(name, problem=f"only the {side} has it: {_show(value)}", status=f"unpaired_{side}")
    elif not all(isinstance(value, _BY_EQUALITY) for value in (reference, target)):
        kind = next(type(value).__name__ for value in (reference, target) if not isinstance(value, _BY_EQUALITY))
        problem = f"a value of class {kind} is no tensor, and was not compared; {_EXPECTED}"
        yield PairedValue(name, problem=problem, status="unreadable")
    elif reference != target:
        problem = f"{_show(target)}, expected {_show(reference)}; what is no tensor has to be equal"
        yield PairedValue(name, problem=problem, status="fail")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_plain(value: Any) -> bool:
    """Tell whether a value is neither a tensor, nor a number, nor a container that has entries of its own."""
    if isinstance(value, _BY_EQUALITY):
        return True
    is_tensor = isinstance(value, numbers.Number) or any(hasattr(value, name) for name in ("dtype", "__array__", "data_ptr"))
    return not (value is None or is_tensor or isinstance(value, (Mapping, list, tuple)) or _is_dataclass(value))


def _sort(value: Any, other: Any) -> str:
    """Return whether a value has entries by name, by position, or is a single tensor, beside what the other side has there."""
    if _is_plain(value):
        return _PLAIN
    if isinstance(value, Mapping) or _is_dataclass(value):
        return _NAMED
    if not isinstance(value, (list, tuple)):
        return _SINGLE
    # [1.0, 2.0] is one tensor, unless the other side has a container there, such as a list of two tensors.
    beside = isinstance(other, (list, tuple)) and _has_entries(other)
    return _ORDERED if beside or _has_entries(value) else _SINGLE


def _has_entries(values: list[Any] | tuple[Any, ...]) -> bool:
    """Tell whether a list is a container of tensors, and not one tensor of numbers.

    ``[[1, 2], [3, 4]]`` is one tensor of shape 2 x 2; ``[]``, ``[tensor, None]``, ``[{"a": 1}, 2]`` and ``[[1, 2], [3]]`` are
    containers.
    """
    if not values or any(_is_entry(item) for item in values):
        return True
    inner = [item for item in values if isinstance(item, (list, tuple))]
    return bool(inner) and (len(inner) < len(values) or len({np.shape(item) for item in inner}) > 1)


def _is_entry(item: Any) -> bool:
    if isinstance(item, (list, tuple)):
        return _has_entries(item)
    is_tensor = hasattr(item, "shape") and hasattr(item, "dtype")
    return item is None or is_tensor or isinstance(item, Mapping) or _is_dataclass(item) or _is_plain(item)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _entries(value: Any) -> dict[Any, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def _describe(value: Any, sort: str) -> str:
    if sort == _PLAIN:
        return _show(value) if isinstance(value, _BY_EQUALITY) else f"a {type(value).__name__}"
    if sort == _SINGLE:
        return "a tensor" if hasattr(value, "dtype") else f"a {type(value).__name__}"
    entries = list(_entries(value))
    shown = f": {', '.join(name_keys(entries[:4]))}{', ...' * (len(entries) > 4)}" if sort == _NAMED and entries else ""
    return f"a {type(value).__name__} of {len(entries)}{shown}"


def _take_type(value: Any, array: Array, other: Array) -> Array:
    """Return a plain number, or a list of them, in the element type of the other side's tensor, if that holds the same values.

    Python's integers have no width of their own: ``[1, 2]`` is compared with a tensor of int32, and with one of float32.
    """
    if hasattr(value, "dtype") or array.dtype.kind != "i" or array.dtype == other.dtype:
        return array
    if other.dtype.kind in "iu" or (is_floating(name_of(other.dtype)) and other.dtype.kind != "c"):
        converted = array.astype(other.dtype)
        if np.array_equal(converted.astype(np.float64), array.astype(np.float64)):
            return converted
    return array


def as_array(value: Any) -> Array:
    """Return a tensor as a NumPy array of the same type. Bytes of torch tensors are copied: NumPy itself has no bfloat16.

    Args:
        value: A tensor of torch on any device, an array, a number, or a list of numbers.

    Raises:
        TypeError: It is no tensor, has no values, or its element type is not one that a dump can hold.
    """
    if hasattr(value, "detach") and hasattr(value, "data_ptr"):  # a torch tensor; torch itself need not be installed
        return _copy_torch(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"cannot compare a {type(value).__name__} ({error}); {_EXPECTED}") from error
    if not name_of(array.dtype):
        what = f"elements of type {array.dtype}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
        raise TypeError(f"cannot compare {what}; {_EXPECTED}")
    return array


def _copy_torch(value: Any) -> Array:
    tensor = value.detach()
    element = str(tensor.dtype).rpartition(".")[2]
    if element not in NUMPY_DTYPES:
        wider = ", such as .float() of both" if is_floating(element) and "float" in element else ""
        raise TypeError(f"cannot compare elements of type {tensor.dtype}; expected one that a dump can hold{wider}")
    if tensor.device.type == "meta":
        raise TypeError("cannot compare a meta tensor, which has no values")
    if tensor.is_nested or str(tensor.layout) != "torch.strided":
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise TypeError(f"cannot compare {kind}; expected a dense one: to_dense(), or to_padded_tensor()")
    # torch may store a conjugate or a negation as a flag instead of new bytes.
    # `packed` must live until its bytes are copied.
    packed = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    size = packed.numel() * packed.element_size()
    data = ctypes.string_at(packed.data_ptr(), size) if size else b""
    return np.frombuffer(data, NUMPY_DTYPES[element]).reshape(tuple(packed.shape))

"""Canonical names of operators: the same name however an operator was called."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, FrozenSet

from precflow.agent.contract import MOVEMENT

_BINARY = "add sub mul matmul div truediv floordiv mod pow and or xor lshift rshift".split()
_REFLECTED: FrozenSet[str] = frozenset("r" + name for name in _BINARY)
_IN_PLACE: FrozenSet[str] = frozenset("i" + name for name in _BINARY)
_ACCESS = frozenset(["__get__", "__set__", "__delete__"])

# Python's names for what torch calls otherwise: which of the two a mode sees depends on torch's version.
_SPELLINGS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "invert": "bitwise_not",
}


def operator_name(function: Any) -> str:
    """Return the canonical name of a torch function, method or custom operator; ``""`` for access to an attribute."""
    name = getattr(function, "__name__", "")
    return "" if name in _ACCESS else canonical_name(name)


def aten_name(overload: Any) -> str:
    """Return the canonical name of an aten operator or custom operator, without its overload."""
    return canonical_name(overload.__name__.partition(".")[0])


@lru_cache(maxsize=4096)
def canonical_name(name: str) -> str:
    """Return a name without the parts that depend on how the operator was called.

    >>> [canonical_name(name) for name in ("__radd__", "__iadd__", "add_", "add.Tensor", "_softmax", "__getitem__")]
    ['add', 'add_', 'add_', 'add', 'softmax', 'getitem']
    """
    if not (name.startswith("__") and name.endswith("__")):
        return name.partition(".")[0].lstrip("_")
    word = name.strip("_")  # one of Python's operators
    if word in _IN_PLACE:
        return _SPELLINGS.get(word[1:], word[1:]) + "_"
    # Looked up and not guessed from the first letter: "rshift" and "invert" are no reflected "shift" and no in-place "nvert".
    if word in _REFLECTED:
        word = word[1:]
    return _SPELLINGS.get(word, word)


@lru_cache(maxsize=4096)
def is_movement(name: str) -> bool:
    """Tell whether an operator only moves values, such as ``transpose`` or ``cat``."""
    return name.rstrip("_") in MOVEMENT or name in MOVEMENT

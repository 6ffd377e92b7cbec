"""Arguments of a call: which are tensors, and the others as text that can be compared between sides."""

from __future__ import annotations

import hashlib
import inspect
import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from precflow.agent import redaction
from precflow.agent.capture.nesting import LARGEST, Placed, leaves

LONGEST = 200  # characters of one argument

_NUMBERS = frozenset((bool, int, float, type(None)))  # as most arguments are: without anything inside, and without an address
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signatures:
    """Names of positional parameters, looked up once for each function."""

    def __init__(self) -> None:
        self._names: Dict[Any, Tuple[str, ...]] = {}

    def names(self, function: Callable[..., Any]) -> Tuple[str, ...]:
        """Return the names of the leading positional parameters; none for what is written in C."""
        key = getattr(function, "__func__", function)  # a method is a new object each time, its function is not
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = _positional_names(function)
        return found


def _positional_names(function: Callable[..., Any]) -> Tuple[str, ...]:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return ()
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a wrapper around what is written in C, such as Tensor.__pow__
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


def split_arguments(
    positional: Sequence[Any], keywords: Mapping[str, Any], names: Sequence[str] = ()
) -> Tuple[List[Placed], Dict[str, str]]:
    """Return the tensors as ``(path, tensor)``, and everything else as ``name -> text``.

    Tensors are placed by position, or by keyword where they were passed by keyword. Other arguments go by ``names`` where
    that knows the position. A container without any tensor is one argument; next to a tensor its values go by path.
    """
    tensors: List[Placed] = []
    others: Dict[str, str] = {}
    for place, value in enumerate(positional):
        _sort(value, str(place), names[place] if place < len(names) else str(place), tensors, others)
    for name, value in keywords.items():
        _sort(value, name, name, tensors, others)
    return tensors, others


def _sort(value: Any, path: str, name: str, tensors: List[Placed], others: Dict[str, str]) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append((path, value))
        return
    if type(value) in _NUMBERS:
        others[name] = argument_text(value)
        return
    found = list(leaves(value, path))
    if not any(isinstance(leaf, torch.Tensor) for _, leaf in found):
        others[name] = argument_text(value)
        return
    for place, leaf in found:
        if isinstance(leaf, torch.Tensor):
            tensors.append((place, leaf))
        else:
            others[place] = argument_text(leaf)


def argument_text(value: Any) -> str:
    """Return ``repr`` in at most ``LONGEST`` characters, without memory addresses.

    What is cut off still counts: a cut text ends in a checksum of the whole, so that different values stay different.
    """
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > LARGEST:
        return "%s of %d" % (type(value).__name__, len(value))
    try:
        whole = repr(value)
    except Exception as problem:  # noqa: BLE001  anything can go wrong in a user's __repr__, and none of it is the run's business
        whole = "<%s without repr: %s>" % (type(value).__qualname__, type(problem).__name__)
    text = whole if type(value) in _NUMBERS else _ADDRESS.sub("0x", whole)
    if "'" in text or '"' in text:  # a text is among them
        text = redaction.text(text)
    if len(text) <= LONGEST:
        return text
    mark = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()
    return "%s... #%s" % (text[: LONGEST - len(mark) - 5], mark)

"""Arguments of a call: the tensors, and all others as text that can be compared between the two sides."""

from __future__ import annotations

import hashlib
import inspect
import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from precflow.agent import redaction
from precflow.agent.capture.nesting import LARGEST, TensorWithPath, leaves
from precflow.agent.contract import name_keys

LONGEST = 200  # characters of one argument

# By exact type: a subclass may have a repr of its own, with an address in it.
_NUMBERS = frozenset((bool, int, float, type(None)))  # most arguments are one of these: no nesting, no memory address
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signatures:
    """Names of positional parameters; each function is inspected once."""

    def __init__(self) -> None:
        self._names: Dict[Any, Tuple[str, ...]] = {}

    def parameter_names(self, function: Callable[..., Any]) -> Tuple[str, ...]:
        """Return the names of the leading positional parameters; none for functions written in C."""
        key = getattr(function, "__func__", function)  # a bound method is a new object each time, its function is not
        names = self._names.get(key)
        if names is None:
            names = self._names[key] = _inspect_parameters(function)
        return names


def _inspect_parameters(function: Callable[..., Any]) -> Tuple[str, ...]:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return ()
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a Python wrapper around C code, such as Tensor.__pow__
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


def split_arguments(
    positional: Sequence[Any], keywords: Mapping[str, Any], names: Sequence[str] = ()
) -> Tuple[List[TensorWithPath], Dict[str, str]]:
    """Return the tensors as ``(path, tensor)``, and everything else as ``name -> text``.

    The path of a tensor begins with its position, or with its keyword if it was passed by keyword. Other arguments go by the
    parameter names in ``names``, as far as those reach. A container without a tensor is one argument; in a container with a
    tensor, the other values are arguments of their own, named by their path.
    """
    tensors: List[TensorWithPath] = []
    others: Dict[str, str] = {}
    for place, value in enumerate(positional):
        _add_argument(value, str(place), names[place] if place < len(names) else str(place), tensors, others)
    for name, value in zip(name_keys(keywords), keywords.values()):  # `**{"0": x}` is no first argument
        _add_argument(value, name, name, tensors, others)
    return tensors, others


def _add_argument(value: Any, path: str, name: str, tensors: List[TensorWithPath], others: Dict[str, str]) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append((path, value))
        return
    if type(value) in _NUMBERS:
        others[name] = format_argument(value)
        return
    # A list, a dict, a ModelOutput: its tensors get paths such as past.0.key
    entries = list(leaves(value, path))
    if not any(isinstance(leaf, torch.Tensor) for _, leaf in entries):
        others[name] = format_argument(value)
        return
    for place, leaf in entries:
        if isinstance(leaf, torch.Tensor):
            tensors.append((place, leaf))
        else:
            others[place] = format_argument(leaf)


def format_argument(value: Any) -> str:
    """Return ``repr`` in at most ``LONGEST`` characters, without memory addresses.

    A longer text is cut and ends in a checksum of the whole, so that different values still have different texts.
    """
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > LARGEST:
        return "%s of %d" % (type(value).__name__, len(value))
    try:
        whole = repr(value)
    except Exception as problem:  # noqa: BLE001  a user's __repr__ can fail in any way, and must not stop the run
        whole = "<%s without repr: %s>" % (type(value).__qualname__, type(problem).__name__)
    text = whole if type(value) in _NUMBERS else _ADDRESS.sub("0x", whole)  # addresses differ from run to run
    if "'" in text or '"' in text:  # it contains a string, which may hold a secret
        text = redaction.redact_text(text)
    if len(text) <= LONGEST:
        return text
    # Lone surrogates, such as those of file names that are not UTF-8, cannot be encoded as they are.
    checksum = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()
    return "%s... #%s" % (text[: LONGEST - len(checksum) - 5], checksum)

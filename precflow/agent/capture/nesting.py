"""Tensors inside nested arguments and outputs, each with its path."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Iterable, Iterator, List, Optional, Tuple

import torch

from precflow.agent.contract import name_keys

LARGEST = 4096  # larger containers count as one value: nobody nests that many tensors, and walking them takes time

TensorWithPath = Tuple[str, torch.Tensor]  # ("past.0.key", tensor)

# Asked first, because most arguments are one of these. torch.Size is a tuple too, but counts as one value.
_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size, torch.Tensor)


def output_tensors(result: Any) -> List[TensorWithPath]:
    """Return ``(path, tensor)`` of every tensor in what a call returned; a single tensor has the path ``0``."""
    if isinstance(result, torch.Tensor):
        return [("0", result)]
    return [(path, leaf) for path, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]


def leaves(value: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield ``(path, value)`` of everything that is not a container, in order and at any depth.

    Containers are lists, tuples, mappings (so a transformers ``ModelOutput``) and dataclass instances. A container that
    holds itself is yielded as a value where it comes up again. No two values have the same path.

    >>> list(leaves({"mask": None, "past": [1, 2], "a.b": 3, "a": {"b": 4}}))
    [('mask', None), ('past.0', 1), ('past.1', 2), ("'a.b'", 3), ('a.b', 4)]
    """
    # A stack instead of recursion: users nest deeper than Python recurses.
    enclosing: List[int] = []  # ids of the containers around the current value, outermost first
    walks = [iter([(path, value)])]
    while walks:
        entry = next(walks[-1], None)
        if entry is None:
            walks.pop()
            del enclosing[-1:]
            continue
        place, child = entry
        # A list that holds itself would be walked forever; one that is given twice side by side is walked twice.
        inner = None if id(child) in enclosing else _children(child)
        if inner is None:
            yield place or "0", child
        else:
            enclosing.append(id(child))
            walks.append(iter([("%s.%s" % (place, key) if place else key, within) for key, within in inner]))


def _children(value: Any) -> Optional[Iterable[Tuple[str, Any]]]:
    """Return the named entries of a container, ``None`` for anything else."""
    if isinstance(value, _PLAIN):
        return None
    if isinstance(value, Mapping):
        # A key with a dot in it, or `"1"` beside `1`, must not have the name of something else.
        return None if len(value) > LARGEST else list(zip(name_keys(value), value.values()))
    if isinstance(value, (list, tuple)):
        return None if len(value) > LARGEST else [(str(place), child) for place, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return None

"""Tensors inside nested arguments and outputs, each with its path."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Iterable, Iterator, List, Optional, Tuple

import torch

LARGEST = 4096  # containers with more entries are one value: nobody nests that many tensors, and walking them costs

Placed = Tuple[str, torch.Tensor]

_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size, torch.Tensor)


def output_tensors(result: Any) -> List[Placed]:
    """Return ``(path, tensor)`` of every tensor in what a call returned; a single tensor has the path ``0``."""
    if isinstance(result, torch.Tensor):
        return [("0", result)]
    return [(path, leaf) for path, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]


def leaves(value: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield ``(path, value)`` of everything that is no container, in order, however deep the containers lie in each other.

    Containers are lists, tuples, mappings (so a transformers ``ModelOutput``) and dataclass instances. A container that
    holds itself is yielded as a value where it comes up again.
    """
    around: List[int] = []  # ids of the containers that are walked through, outermost first
    walks = [iter([(path, value)])]
    while walks:
        entry = next(walks[-1], None)
        if entry is None:
            walks.pop()
            del around[-1:]
            continue
        place, child = entry
        inner = None if id(child) in around else _children(child)
        if inner is None:
            yield place or "0", child
        else:
            around.append(id(child))
            walks.append(iter([("%s.%s" % (place, key) if place else key, within) for key, within in inner]))


def _children(value: Any) -> Optional[Iterable[Tuple[str, Any]]]:
    if isinstance(value, _PLAIN):
        return None
    if isinstance(value, Mapping):
        return None if len(value) > LARGEST else [(str(key), child) for key, child in value.items()]
    if isinstance(value, (list, tuple)):
        return None if len(value) > LARGEST else [(str(place), child) for place, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return None

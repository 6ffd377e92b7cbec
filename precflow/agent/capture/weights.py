"""Weights of the model under capture: parameters and buffers by name, as long as nobody has written to them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional

from precflow.agent.capture.lineage import Layout, Seen, layout_of, seen, version_of
from precflow.agent.measure.content_id import readable

if TYPE_CHECKING:
    import torch


class _Weight(NamedTuple):
    tensor: torch.Tensor
    name: str
    version: Optional[int]


class Weights:
    """Names of parameters and buffers.

    A weight is known as an object and by its memory, so that ``weight.detach()`` is still the weight; a transposed weight
    is not. A buffer that the forward writes to (running statistics, a cache) is state from then on, until the next step.

    Args:
        names: ``id(parameter) -> name`` where other names are wanted than the model's own.
    """

    def __init__(self, names: Optional[Mapping[int, str]] = None) -> None:
        self._given = dict(names or {})
        self._objects: Dict[int, _Weight] = {}
        self._memory: Dict[Layout, _Weight] = {}

    def learn(self, model: torch.nn.Module) -> None:
        """Take the names of a model's parameters and buffers; a tied weight has its first name."""
        self.forget()
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            self._add(_Weight(tensor, self._given.get(id(tensor), name), version_of(tensor)))

    def renew(self) -> None:
        """Begin a new step: what the weights hold now is what they are."""
        kept: List[_Weight] = list(self._objects.values())
        self.forget()
        for weight in kept:
            self._add(weight._replace(version=version_of(weight.tensor)))

    def forget(self) -> None:
        """Let the model go."""
        self._objects.clear()
        self._memory.clear()

    def name(self, tensor: torch.Tensor, now: Optional[Seen] = None) -> str:
        """Return the weight's name, or ``""``.

        Args:
            tensor: Any.
            now: What it looks like, where that is known.
        """
        weight = self._objects.get(id(tensor))
        if weight is None and self._memory:
            now = now or seen(tensor)
            weight = None if now.address is None else self._memory.get(now.layout)
        if weight is None or version_of(weight.tensor) != weight.version:
            return ""
        return weight.name

    def _add(self, weight: _Weight) -> None:
        self._objects[id(weight.tensor)] = weight
        if readable(weight.tensor) and weight.tensor.numel():
            self._memory.setdefault(layout_of(weight.tensor), weight)

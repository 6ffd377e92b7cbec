"""Weights of the recorded model: parameters and buffers by name, as long as nobody writes to them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional

from precflow.agent.capture.lineage import Layout, TensorState, layout_of, read_state, version_of
from precflow.agent.contract import join_names
from precflow.agent.measure.content_id import has_plain_bytes

if TYPE_CHECKING:
    import torch


class _Weight(NamedTuple):
    tensor: torch.Tensor
    name: str
    version: Optional[int]


class Weights:
    """Names of parameters and buffers.

    A weight is known both as an object and by its memory, so that ``weight.detach()`` is still the weight; a transposed
    weight is not. A buffer that the forward writes to (running statistics, a cache) is no weight from then on, until the next
    step begins.
    """

    def __init__(self) -> None:
        self._objects: Dict[int, _Weight] = {}
        self._memory: Dict[Layout, _Weight] = {}

    def learn(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Take the names of a model's parameters and buffers; a tied weight has its first name.

        Args:
            model: The model.
            prefix: Name of the model among several, which stands before the names inside it.
        """
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            self._add(_Weight(tensor, join_names(prefix, name), version_of(tensor)))

    def renew(self) -> None:
        """Begin a new step: buffers that the last one wrote to are weights again, with their values of now."""
        weights: List[_Weight] = list(self._objects.values())
        self.clear()
        for weight in weights:
            self._add(weight._replace(version=version_of(weight.tensor)))

    def clear(self) -> None:
        """Forget all weights, so that the model can be freed."""
        self._objects.clear()
        self._memory.clear()

    def find_name(self, tensor: torch.Tensor, state: Optional[TensorState] = None) -> str:
        """Return the name of a weight, ``""`` for any other tensor.

        Args:
            tensor: Any tensor.
            state: Its state, if that was read already.
        """
        weight = self._objects.get(id(tensor))
        if weight is None and self._memory:
            # weight.detach(), weight.data and parameters that a library wraps anew are other objects with the same layout
            state = state or read_state(tensor)
            weight = None if state.address is None else self._memory.get(state.layout)
        if weight is None or version_of(weight.tensor) != weight.version:
            return ""
        return weight.name

    def _add(self, weight: _Weight) -> None:
        self._objects[id(weight.tensor)] = weight
        if has_plain_bytes(weight.tensor) and weight.tensor.numel():  # empty tensors all have the data pointer 0
            self._memory.setdefault(layout_of(weight.tensor), weight)

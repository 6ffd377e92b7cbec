"""What a recording remembers for the case that the workload breaks: what runs, the last record, and shapes seen before."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from precflow.agent.contract import FORWARD, Identity, identity_text, module_text
from precflow.agent.measure.content_id import dtype_name

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.nesting import TensorWithPath

MOST_TENSORS = 8  # of one call
MOST_SHAPES = 8  # of one module, the first ones

Shapes = Tuple[Tuple[int, ...], ...]  # of the inputs of one call


class Running(NamedTuple):
    """A call that has begun.

    Attributes:
        phase: ``forward`` or ``backward``.
        module: The module that runs, or that calls the operator.
        class_name: Its class.
        operator: Canonical name; ``""`` for the module itself.
        site: Where it is called from.
        last: Identity of the last record before it.
        given: The tensors that it is given, as text.
    """

    phase: str = FORWARD
    module: str = ""
    class_name: str = ""
    operator: str = ""
    site: str = ""
    last: str = ""
    given: str = ""


class Trail:
    """What is remembered of a recording.

    Attributes:
        step: Number of the step.
        running: The call that began last.
        last: The last record that is complete.
    """

    def __init__(self) -> None:
        self.step: Optional[int] = None
        self.running = Running()
        self.last: Optional[Identity] = None
        self._shapes: Dict[str, Dict[Shapes, None]] = {}

    def note_shapes(self, module: str, inputs: Sequence[Dict[str, Any]]) -> None:
        """Note the shapes that a module was given in a call that has come to its end."""
        seen = self._shapes.setdefault(module, {})
        if len(seen) < MOST_SHAPES:
            seen[tuple([record["shape"] for record in inputs])] = None

    def describe_last(self) -> str:
        """Return the identity of the last record as text, ``""`` if there is none."""
        return "" if self.last is None else _identify(self.last)

    def list_shapes(self, module: str) -> List[List[List[int]]]:
        """Return what shapes a module was given before, one list of shapes for each kind of call.

        Args:
            module: As text: ``(model)`` is the model itself.
        """
        for name, seen in self._shapes.items():
            if module_text(name) == module:
                return [[list(shape) for shape in shapes] for shapes in seen]
        return []


_identify = lru_cache(maxsize=4096)(identity_text)  # each call notes the record before it


def format_tensor(tensor: TensorWithPath) -> str:
    """Return path, type and shape of a tensor as text, such as ``0 float32 [2, 77]``."""
    index, each = tensor
    return _format(index, each.dtype, () if each.is_nested else each.shape)


@lru_cache(maxsize=4096)  # a model calls with the same shapes again and again, and every call is noted
def _format(index: str, dtype: torch.dtype, shape: Sequence[int]) -> str:
    return "%s %s %s" % (index, dtype_name(dtype), list(shape))


def describe_tensors(tensors: Sequence[TensorWithPath]) -> List[Dict[str, Any]]:
    """Return path, type, shape and device of tensors as plain data, of the first ones."""
    return [
        {
            "index": index,
            "dtype": dtype_name(tensor.dtype),
            "shape": [] if tensor.is_nested else list(tensor.shape),
            "device": "%s" % tensor.device,
        }
        for index, tensor in tensors[:MOST_TENSORS]
    ]

"""Record lines: a call and its tensors as they stand in the dump, in order of completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from precflow.agent.capture.contents import Contents
from precflow.agent.capture.sources import Sources
from precflow.agent.contract import Identity, identity_text, operator_of
from precflow.agent.digest import dtype_name

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.frames import Frame
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.weights import Weights
    from precflow.agent.writer import Writer

Record = Dict[str, Any]


class Heading(NamedTuple):
    """What a line says about its call, besides the tensors.

    Attributes:
        level: ``module``, ``api`` or ``operator``.
        frame: The module call that it belongs to.
        operator: Canonical name, ``""`` for the module itself.
        ordinal: How often the operator ran before in this module call.
        site: Number of the call site.
        movement: The operator only moves values: its tensors are not stored.
        arguments: The arguments that are not tensors.
        phase: ``forward``, ``backward``, ``gradient``, ``optimizer``.
        forward: Orders of the forward lines that a line of another phase belongs to.
    """

    level: str
    frame: Frame
    operator: str
    ordinal: int
    site: int
    movement: bool
    arguments: Mapping[str, str]
    phase: str = "forward"
    forward: Sequence[int] = ()


class Lines:
    """Makes the lines of a run and hands them to the writer.

    Args:
        writer: Where lines go; ``None`` where nothing is written.
        weights: The weights of the model.
        store: Store the tensors, not only their content ids.
        rank: Rank of this process.
    """

    def __init__(self, writer: Optional[Writer], weights: Weights, *, store: bool, rank: int) -> None:
        self.sources = Sources()
        self.outputs: Dict[str, str] = {}  # identity text -> content id, of this step
        self.records = 0
        self._writer = writer
        self._weights = weights
        self._contents = Contents(writer if store else None)
        self._rank = rank
        self._step = 0
        self._order = 0

    def begin(self, step: int) -> None:
        """Begin a step.

        Raises:
            WriteError: Its files cannot be opened.
        """
        self._step = step
        self._order = 0
        self.outputs = {}
        self.sources.forget()
        self._contents.forget()
        if self._writer is not None:
            self._writer.open_step(step, self._rank)

    @property
    def failed(self) -> bool:
        """The writer cannot go on: from here on nothing is recorded."""
        return self._writer is not None and self._writer.failure is not None

    def describe(self, tensors: Sequence[Placed], *, store: bool, returned: bool = False) -> List[Record]:
        """Return the tensors as they are now: content, source, name; weights have content only where they are ``returned``.

        Raises:
            WriteError: A tensor cannot be stored.
        """
        return [self._record(index, tensor, store=store, returned=returned) for index, tensor in tensors]

    def written(self, tensor: torch.Tensor) -> None:
        """Note that a call wrote to memory that was there before."""
        self._contents.written(tensor)

    def emit(self, heading: Heading, inputs: Sequence[Record], outputs: Sequence[Record]) -> int:
        """Write a call's line and return its order.

        Raises:
            WriteError: The line cannot be written.
        """
        order = self._order
        self._order += 1
        self.records += len(inputs) + len(outputs)
        for record in outputs:
            self.outputs[self._identity(heading, record["index"])] = record["content"]
        if self._writer is not None:
            self._writer.call(self._line(order, heading, inputs, outputs))
        return order

    def _record(self, index: str, tensor: torch.Tensor, *, store: bool, returned: bool) -> Record:
        weight = self._weights.name(tensor)
        content, stored = ("", False) if weight and not returned else self._contents.of(tensor, store=store)
        source = None if weight else self.sources.find(tensor)
        return {
            "index": index,
            "dtype": dtype_name(tensor.dtype),
            "shape": [] if tensor.is_nested else list(tensor.shape),  # which has rows of different lengths
            "content": content,
            "stored": stored,
            "source": None if source is None else list(source),
            "weight": weight,
        }

    def _line(self, order: int, heading: Heading, inputs: Sequence[Record], outputs: Sequence[Record]) -> Dict[str, Any]:
        frame = heading.frame
        return {
            "order": order,
            "level": heading.level,
            "module": frame.module,
            "class": frame.class_name,
            "call": frame.call,
            "operator": heading.operator,
            "ordinal": heading.ordinal,
            "phase": heading.phase,
            "step": self._step,
            "rank": self._rank,
            "site": heading.site,
            "forward": list(heading.forward),
            "movement": heading.movement,
            "compiled": frame.compiled,
            "arguments": dict(heading.arguments),
            "inputs": list(inputs),
            "outputs": list(outputs),
        }

    def _identity(self, heading: Heading, index: str) -> str:
        frame, operator = heading.frame, operator_of(heading.level, heading.operator)
        who = (frame.module, frame.call, operator, heading.ordinal, heading.phase, "output", index, self._step, self._rank)
        return identity_text(Identity(*who))

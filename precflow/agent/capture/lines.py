"""Record lines: a call and its tensors as they stand in the dump, in order of completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from precflow.agent.capture.contents import NOTHING, Contents
from precflow.agent.capture.sources import Sources
from precflow.agent.contract import Identity, identity_text, operator_of
from precflow.agent.digest import dtype_name
from precflow.agent.parts import kept_of
from precflow.agent.scope import Choice

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.frames import Frame
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.weights import Weights
    from precflow.agent.writer import Writer

MOST_LINES = 512  # that wait for their tensors to be measured

Record = Dict[str, Any]  # a tensor as a line shows it, but for what its ticket will say


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


class _Pending(NamedTuple):
    """A call that waits for its tensors to be measured."""

    order: int
    heading: Heading
    inputs: List[Record]
    outputs: List[Record]


class Lines:
    """Makes the lines of a run and hands them to the writer, in order of completion.

    Lines wait until their tensors are measured, many at once: :meth:`flush`.

    Args:
        writer: Where lines go; ``None`` where nothing is written.
        weights: The weights of the model.
        detail: What is kept of tensors where no choice says otherwise: one of ``measuring.DETAILS``.
        rank: Rank of this process.
    """

    def __init__(self, writer: Optional[Writer], weights: Weights, *, detail: str, rank: int) -> None:
        self.sources = Sources()
        self.records = 0
        self._writer = writer
        self._weights = weights
        self._contents = Contents(writer)
        self._general = Choice(detail, None)
        self._rank = rank
        self._step = 0
        self._order = 0
        self._pending: List[_Pending] = []
        self._outputs: Dict[str, str] = {}

    def begin(self, step: int) -> None:
        """Begin a step.

        Raises:
            WriteError: The step before cannot be written, or the files of this one cannot be opened.
        """
        self.flush()
        self._step = step
        self._order = 0
        self._outputs = {}
        self.sources.forget()
        self._contents.forget()
        if self._writer is not None:
            self._writer.open_step(step, self._rank)

    @property
    def failed(self) -> bool:
        """The writer cannot go on: from here on nothing is recorded."""
        return self._writer is not None and self._writer.failure is not None

    @property
    def outputs(self) -> Dict[str, str]:
        """Content id of every output of this step, by identity text.

        Raises:
            WriteError: What waits cannot be written.
        """
        self.flush()
        return self._outputs

    def describe(
        self, tensors: Sequence[Placed], *, store: bool, returned: bool = False, choice: Optional[Choice] = None
    ) -> List[Record]:
        """Return the tensors as they are now: source and name, and a ticket for their content, which is read now or copied.

        Args:
            tensors: With their places.
            store: More is kept of them than the content id.
            returned: Weights have content too.
            choice: What is kept, where a rule says it; else the general detail.

        Raises:
            WriteError: A tensor cannot be stored.
        """
        chosen = (choice or self._general) if store else _CONTENT_ONLY
        return [self._record(index, tensor, chosen, returned=returned) for index, tensor in tensors]

    def written(self, tensor: torch.Tensor) -> None:
        """Note that a call wrote to memory that was there before."""
        self._contents.written(tensor)

    def emit(self, heading: Heading, inputs: Sequence[Record], outputs: Sequence[Record]) -> int:
        """Take a call's line and return its order.

        Raises:
            WriteError: Lines cannot be written.
        """
        order = self._order
        self._order += 1
        self.records += len(inputs) + len(outputs)
        self._pending.append(_Pending(order, heading, list(inputs), list(outputs)))
        if self._contents.full or len(self._pending) >= MOST_LINES:
            self.flush()
        return order

    def flush(self) -> None:
        """Write everything that waits; nothing happens once the writer has failed.

        Raises:
            WriteError: A line or a tensor cannot be written.
        """
        pending, self._pending = self._pending, []
        if self.failed:
            return
        self._contents.flush()
        for each in pending:
            inputs, outputs = ([finished(record) for record in records] for records in (each.inputs, each.outputs))
            for record in outputs:
                self._outputs[self._identity(each.heading, record["index"])] = record["content"]
            if self._writer is not None:
                self._writer.call(self._line(each.order, each.heading, inputs, outputs))

    def _record(self, index: str, tensor: torch.Tensor, chosen: Choice, *, returned: bool) -> Record:
        weight = self._weights.name(tensor)
        kept = None if chosen.part is None else kept_of(tuple(tensor.shape), chosen.part.slices, chosen.part.sample)
        ticket = NOTHING if weight and not returned else self._contents.of(tensor, chosen.detail, kept)
        source = None if weight else self.sources.find(tensor)
        return {
            "index": index,
            "dtype": dtype_name(tensor.dtype),
            "shape": [] if tensor.is_nested else list(tensor.shape),  # which has rows of different lengths
            "source": None if source is None else list(source),
            "weight": weight,
            "detail": chosen.detail,
            "ticket": ticket,
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


_CONTENT_ONLY = Choice("digest", None)


def finished(record: Record) -> Record:
    """Return a tensor as its line shows it, from a ticket that is filled in."""
    ticket, detail = record["ticket"], record["detail"]
    line = {
        "index": record["index"],
        "dtype": record["dtype"],
        "shape": record["shape"],
        "content": ticket.content,
        "stored": ticket.stored and detail != "digest",
        "source": record["source"],
        "weight": record["weight"],
    }
    if detail in ("statistics", "sketch") and ticket.statistics is not None:
        line["statistics"] = ticket.statistics
    if detail != "digest" and ticket.kept is not None:
        line["share"], line["part"] = ticket.kept.part.share, ticket.kept.name
    return line

"""The measurements of the tensors of a run: each tensor is measured once, as long as nobody writes to its memory.

A tensor that goes from call to call is the output of one record and the input of several others. All of them share one
:class:`Ticket`, which is filled in when the waiting tensors are measured together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Protocol, Tuple

import torch

from precflow.agent.capture.lineage import Layout, Storages, TensorState, address_of, read_state
from precflow.agent.measure.batching import BatchMeasurer
from precflow.agent.measure.parts import KeptPart
from precflow.agent.measure.ticket import Ticket

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer

NO_CONTENT = Ticket("digest", None)  # the ticket of tensors without plain bytes, and of weights

_Tickets = Dict[Tuple[object, Layout], List[Ticket]]  # version and layout -> tickets of one storage


class Measurer(Protocol):
    """What measures tensors; :class:`MeasurementCache` says what each method does."""

    def clear(self) -> None:
        """Forget everything."""

    def note_write(self, tensor: torch.Tensor) -> None:
        """A call wrote to the tensor's memory."""

    def measure(
        self, tensor: torch.Tensor, detail: str, kept: Optional[KeptPart] = None, state: Optional[TensorState] = None
    ) -> Ticket:
        """Return the ticket of a tensor as it is now."""

    @property
    def full(self) -> bool:
        """It is time for a flush."""

    def flush(self) -> None:
        """Fill in every ticket."""


class MeasurementCache:
    """Tickets of tensors by storage, layout and version.

    Args:
        writer: Where tensors are stored; ``None`` stores nothing.
        storages: Holds the storages that are known here.
        fine: Sketches keep high and low parts apart.
    """

    def __init__(self, writer: Optional[Writer], storages: Storages, *, fine: bool = False) -> None:
        self._measurer = BatchMeasurer(writer, fine=fine)
        self._storages = storages
        self._tickets: Dict[int, _Tickets] = {}
        self._in_group = _is_in_group()
        storages.register(self._tickets)

    def clear(self) -> None:
        """Forget everything; tensors that were stored stay stored."""
        self._tickets.clear()
        # Asked again at each step: the user's code may join a group after the recorder was made.
        self._in_group = _is_in_group()

    def note_write(self, tensor: torch.Tensor) -> None:
        """Forget what is known of the tensor's memory: a call wrote to it, through this tensor or a view of it."""
        self._tickets.pop(address_of(tensor) or 0, None)

    def measure(
        self, tensor: torch.Tensor, detail: str, kept: Optional[KeptPart] = None, state: Optional[TensorState] = None
    ) -> Ticket:
        """Return the ticket of a tensor as it is now; it is filled in at the next flush at the latest.

        Args:
            tensor: Any tensor; one without plain bytes has no content.
            detail: ``digest``, ``statistics``, ``sketch``, ``tensors``.
            kept: The part that is kept, if that is not the whole tensor.
            state: State of the tensor, if that was read already.

        Raises:
            WriteError: The tensor could not be stored.
        """
        address, version, layout = state or read_state(tensor)
        if address is None and tensor.layout == torch.sparse_coo:
            # The gradient of an embedding with sparse=True: rows that are named twice add up, and their order says nothing.
            return self._measurer.measure(tensor.detach().to_dense(), detail, kept)
        if address is None:  # quantized, meta and wrapped tensors
            return NO_CONTENT
        # Nothing shows whether an inference tensor was written to: it has no version counter. Collectives such as
        # all_reduce write without raising the counter. In both cases every tensor is measured anew.
        if version is None or self._in_group:
            return self._measurer.measure(tensor, detail, kept)
        by_place = self._tickets.get(address)
        if by_place is None:
            self._storages.hold(tensor, address)
            by_place = self._tickets[address] = {}
        # Several tickets of one state: a rule may ask for the sketch of a tensor where another has asked for its statistics.
        tickets = by_place.setdefault((version, layout), [])
        for ticket in tickets:
            if ticket.covers(detail, kept):
                return ticket
        ticket = self._measurer.measure(tensor, detail, kept)
        tickets.append(ticket)
        return ticket

    @property
    def full(self) -> bool:
        """So many tensors wait that :meth:`flush` should be called."""
        return self._measurer.full

    def flush(self) -> None:
        """Fill in every ticket.

        Raises:
            WriteError: A tensor could not be stored.
        """
        self._measurer.flush()


def _is_in_group() -> bool:
    """Tell whether this process belongs to a group of processes, which may run collectives."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())

"""What is known of the tensors of a run: each is measured once, as long as nobody writes to its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Protocol, Tuple

import torch

from precflow.agent.capture.lineage import Layout, Seen, Storages, address_of, seen
from precflow.agent.measure.batching import Measuring, Ticket
from precflow.agent.measure.parts import Kept

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer

_Known = Dict[Tuple[object, Layout], List[Ticket]]

NOTHING = Ticket("digest", None)  # of what has no plain bytes, and of weights


class Tickets(Protocol):
    """Gives out tickets of tensors; :class:`Contents` says what each of these does."""

    def forget(self) -> None:
        """Begin anew."""

    def written(self, tensor: torch.Tensor) -> None:
        """A write to the tensor's memory was seen."""

    def of(self, tensor: torch.Tensor, detail: str, kept: Optional[Kept] = None, now: Optional[Seen] = None) -> Ticket:
        """Return the ticket of a tensor as it is now."""

    @property
    def full(self) -> bool:
        """It is time for a flush."""

    def flush(self) -> None:
        """Fill in every ticket."""


class Contents:
    """Tickets of tensors, remembered by storage, layout and version.

    Args:
        writer: Where tensors are stored; ``None`` stores nothing.
        storages: Holds the storages that are known here.
        fine: Sketches keep high and low parts apart.
    """

    def __init__(self, writer: Optional[Writer], storages: Storages, *, fine: bool = False) -> None:
        self._measuring = Measuring(writer, fine=fine)
        self._storages = storages
        self._known: Dict[int, _Known] = {}
        self._uncounted = _collectives()
        storages.follow(self._known)

    def forget(self) -> None:
        """Forget everything: what has been stored stays stored."""
        self._known.clear()
        self._uncounted = _collectives()

    def written(self, tensor: torch.Tensor) -> None:
        """Forget what is known of the tensor's memory: a write was seen, through this tensor or a view of it."""
        self._known.pop(address_of(tensor) or 0, None)

    def of(self, tensor: torch.Tensor, detail: str, kept: Optional[Kept] = None, now: Optional[Seen] = None) -> Ticket:
        """Return the ticket of a tensor as it is now; it is filled in at the next flush at the latest.

        Args:
            tensor: Any; one without plain bytes has no content.
            detail: ``digest``, ``statistics``, ``sketch``, ``tensors``.
            kept: The part that is kept, where it is not the whole.
            now: What the tensor looks like, where that is known.

        Raises:
            WriteError: The tensor could not be stored.
        """
        address, version, layout = now or seen(tensor)
        if address is None:
            return NOTHING
        if version is None or self._uncounted:  # nothing tells when an inference tensor is written to, or by a collective
            return self._measuring.measure(tensor, detail, kept)
        tickets = self._tickets(address, (version, layout), tensor)
        for ticket in tickets:
            if ticket.covers(detail, kept):
                return ticket
        ticket = self._measuring.measure(tensor, detail, kept)
        tickets.append(ticket)
        return ticket

    def _tickets(self, address: int, place: Tuple[object, Layout], tensor: torch.Tensor) -> List[Ticket]:
        """Return the tickets that were given out for what the memory holds now, to be added to."""
        entry = self._known.get(address)
        if entry is None:
            self._storages.hold(tensor, address)
            entry = self._known[address] = {}
        return entry.setdefault(place, [])

    @property
    def full(self) -> bool:
        """So many tensors wait that :meth:`flush` should be called."""
        return self._measuring.full

    def flush(self) -> None:
        """Fill in every ticket.

        Raises:
            WriteError: A tensor could not be stored.
        """
        self._measuring.flush()


def _collectives() -> bool:
    """Tell whether this process belongs to a group, whose collectives write in place without counting versions."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())

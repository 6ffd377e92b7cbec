"""What is known of the tensors of a run: each is measured once, as long as nobody writes to its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from precflow.agent.capture.memory import Layout, storage_of, version_of
from precflow.agent.capture.memory import layout_of as layout
from precflow.agent.digest import readable
from precflow.agent.measuring import Measuring, Ticket
from precflow.agent.parts import Kept

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    from precflow.agent.writer import Writer

_Known = Dict[Tuple[object, Layout], List[Ticket]]

NOTHING = Ticket("digest", None)  # of what has no plain bytes, and of weights


class Contents:
    """Tickets of tensors, remembered by storage, layout and version.

    Args:
        writer: Where tensors are stored; ``None`` stores nothing.
    """

    def __init__(self, writer: Optional[Writer]) -> None:
        self._measuring = Measuring(writer)
        self._known: Dict[int, Tuple[StorageWeakRef, _Known]] = {}

    def forget(self) -> None:
        """Forget everything: what has been stored stays stored."""
        self._known.clear()

    def written(self, tensor: torch.Tensor) -> None:
        """Forget what is known of the tensor's memory: a write was seen, through this tensor or a view of it."""
        storage = storage_of(tensor)
        if storage is not None:
            self._known.pop(storage.cdata, None)

    def of(self, tensor: torch.Tensor, detail: str, kept: Optional[Kept] = None) -> Ticket:
        """Return the ticket of a tensor as it is now; it is filled in at the next flush at the latest.

        Args:
            tensor: Any; one without plain bytes has no content.
            detail: ``digest``, ``statistics``, ``sketch``, ``tensors``.
            kept: The part that is kept, where it is not the whole.

        Raises:
            WriteError: The tensor could not be stored.
        """
        if not readable(tensor):
            return NOTHING
        version, storage = version_of(tensor), storage_of(tensor)
        if version is None or storage is None:  # nothing tells when an inference tensor is written to
            return self._measuring.measure(tensor, detail, kept)
        _, known = self._known.setdefault(storage.cdata, (storage, {}))
        tickets = known.setdefault((version, layout(tensor)), [])
        for ticket in tickets:
            if ticket.covers(detail, kept):
                return ticket
        ticket = self._measuring.measure(tensor, detail, kept)
        tickets.append(ticket)
        return ticket

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

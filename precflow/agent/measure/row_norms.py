"""Norms of rows that statistics come with: those of all tensors of a flush as one entry of the shard.

A row is the last axis. One bad row hides in the sums of a large tensor, and a thousand norms take no more room than a line.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.measure.content_id import bytes_of
from precflow.agent.measure.sketch import STORED_WHOLE, joined, row_length
from precflow.agent.measure.statistics import ROW

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.batching import Ticket

_LEAST_ROW = 64  # that a row is cut into, where it is too long to be added up in float32


@lru_cache(maxsize=4096)
def shared_row(shape: Tuple[int, ...], count: int) -> int:
    """Return a length of rows for statistics from which norms of the tensor's own rows follow; 0 where none are kept.

    A tensor that is not larger than a line has none.

    Args:
        shape: Of the tensor.
        count: Its values; of a complex tensor there are two an element.
    """
    length = row_length(shape, count)
    if count <= STORED_WHOLE:
        return 0
    if length <= ROW:
        return length
    parts = range(2, length // _LEAST_ROW + 1) if count % length == 0 else ()
    return next((length // number for number in parts if length % number == 0 and length // number <= ROW), 0)


class _Gathered(NamedTuple):
    """Norms that wait, and how many of them make one of the tensor's own rows."""

    ticket: Ticket
    norms: torch.Tensor
    parts: int


class RowNorms:
    """Gathers norms until the next flush, and tells tickets where theirs lie."""

    def __init__(self) -> None:
        self._gathered: List[_Gathered] = []

    def add(self, ticket: Ticket, norms: torch.Tensor, shape: Tuple[int, ...], count: int, row: int) -> None:
        """Take the norms of a tensor, on the host.

        Args:
            ticket: Of the tensor.
            norms: Of rows of length ``row``.
            shape: Of the tensor.
            count: Its values.
            row: What :func:`shared_row` returned.
        """
        if row:
            self._gathered.append(_Gathered(ticket, norms, row_length(shape, count) // row))

    def store(self, writer: Optional[Writer]) -> None:
        """Write all that is gathered, and fill in the tickets.

        Args:
            writer: Where it goes; ``None`` lets it go.

        Raises:
            WriteError: They could not be stored.
        """
        gathered, self._gathered = self._gathered, []
        if not gathered or writer is None:
            return
        gathered.sort(key=lambda each: each.parts)  # those of one kind are joined together
        own = [
            joined(torch.cat([each.norms for each in alike]), parts).to(torch.float32)
            for parts, alike in groupby(gathered, key=lambda each: each.parts)
        ]
        together = torch.cat(own)
        key = hashlib.blake2b(bytes_of(together), digest_size=DIGEST_SIZE).hexdigest()
        writer.tensor(key + ".rows", together, owned=True)
        start = 0
        for each in gathered:
            count = each.norms.numel() // each.parts
            each.ticket.row_norms = (key, start, count)
            start += count

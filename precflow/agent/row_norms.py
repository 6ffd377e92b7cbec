"""Norms of rows that statistics come with: those of all tensors of a flush as one entry of the shard.

A row is the last axis. One bad row hides in the sums of a large tensor, and a thousand norms take no more room than a line.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, List, Tuple

import torch

from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.digest import bytes_of
from precflow.agent.sketch import joined, row_length

if TYPE_CHECKING:
    from precflow.agent.measuring import Ticket
    from precflow.agent.writer import Writer

LEAST = 1025  # elements of a tensor that norms are kept of: a smaller one is smaller than what says where they are
_LEAST_ROW, _LONGEST_ROW = 128, 1024  # that is added up as one: float32 loses no more than the judge allows for


def shared_row(shape: Tuple[int, ...], count: int) -> int:
    """Return a length of rows for statistics from which norms of the tensor's own rows follow; 0 where none does.

    Args:
        shape: Of the tensor.
        count: Its values; of a complex tensor there are two an element.
    """
    return _part_of(row_length(shape, count), count)


@lru_cache(maxsize=1024)
def _part_of(length: int, count: int) -> int:
    if length <= _LONGEST_ROW:
        return length
    parts = range(2, length // _LEAST_ROW + 1) if count % length == 0 else ()
    return next((length // number for number in parts if length % number == 0 and length // number <= _LONGEST_ROW), 0)


class RowNorms:
    """Gathers norms until the next flush, and tells tickets where theirs lie."""

    def __init__(self) -> None:
        self._gathered: List[Tuple[Ticket, torch.Tensor]] = []

    def add(self, ticket: Ticket, norms: torch.Tensor, shape: Tuple[int, ...], count: int, row: int) -> None:
        """Take the norms of a tensor, on the host.

        Args:
            ticket: Of the tensor.
            norms: Of rows of length ``row``.
            shape: Of the tensor.
            count: Its values.
            row: What :func:`shared_row` returned.
        """
        if row and count >= LEAST:
            self._gathered.append((ticket, joined(norms, row_length(shape, count) // row).to(torch.float32)))

    def store(self, writer: Writer) -> None:
        """Write all that is gathered, and fill in the tickets.

        Raises:
            WriteError: They could not be stored.
        """
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        together = torch.cat([norms for _, norms in gathered])
        key = hashlib.blake2b(bytes_of(together), digest_size=DIGEST_SIZE).hexdigest()
        writer.tensor(key + ".rows", together, owned=True)
        start = 0
        for ticket, norms in gathered:
            ticket.row_norms = (key, start, norms.numel())
            start += norms.numel()

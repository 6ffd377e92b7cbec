"""What waits for the next flush to go into the dump: sketches, and the norms of rows that statistics come with.

Those of all tensors of a flush are finished together: with one copy to the host, and few operators instead of few a tensor.
"""

from __future__ import annotations

import hashlib
import math
from itertools import groupby
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.measure.sketch import add_pieces, join_rows, row_length, undo_scaling
from precflow.agent.measure.transfer import bytes_of, to_hosts

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.ticket import Ticket
    from precflow.agent.measure.value_classes import Cleaning


class _Norms(NamedTuple):
    """Norms that wait, and how many of them make one of the tensor's own rows."""

    ticket: Ticket
    norms: torch.Tensor
    per_row: int


class PendingRowNorms:
    """Gathers norms of rows until the next flush, and tells tickets where theirs lie.

    One bad row hides in the sums of a large tensor, and a thousand norms take no more room than a record's line. All norms of
    a flush are one entry of the shard.
    """

    def __init__(self) -> None:
        self._gathered: List[_Norms] = []

    def add(self, ticket: Ticket, norms: torch.Tensor, shape: Tuple[int, ...], count: int, row: int) -> None:
        """Take the norms of a tensor, on the host.

        Args:
            ticket: Of the tensor.
            norms: Of rows of length ``row``.
            shape: Of the tensor.
            count: Its values.
            row: What :func:`~precflow.agent.measure.sketch.shared_row_length` returned; 0 adds nothing.
        """
        if row:
            self._gathered.append(_Norms(ticket, norms, row_length(shape, count) // row))

    def store(self, writer: Optional[Writer]) -> None:
        """Write everything that was gathered, and fill in the tickets.

        Args:
            writer: Where it goes; without one it is dropped.

        Raises:
            WriteError: They could not be stored.
        """
        gathered, self._gathered = self._gathered, []
        if not gathered or writer is None:
            return
        gathered.sort(key=lambda each: each.per_row)  # so that those of one kind are joined together
        own = [
            join_rows(torch.cat([each.norms for each in alike]), per_row).to(torch.float32)
            for per_row, alike in groupby(gathered, key=lambda each: each.per_row)
        ]
        together = torch.cat(own)
        key = hashlib.blake2b(bytes_of(together), digest_size=DIGEST_SIZE).hexdigest()
        writer.tensor(key + ".rows", together, owned=True)
        start = 0
        for each in gathered:
            count = each.norms.numel() // each.per_row
            each.ticket.row_norms = (key, start, count)
            start += count


class _Sketch(NamedTuple):
    """The pieces of a sketch that waits, the norms of the rows, and what the values were cleaned with."""

    pieces: torch.Tensor
    rows: torch.Tensor
    clean: Optional[Cleaning]


class PendingSketches:
    """Gathers sketches until the next flush.

    Args:
        writer: Where they go; ``None`` keeps none.
    """

    def __init__(self, writer: Optional[Writer]) -> None:
        self._writer = writer
        self._gathered: Dict[str, _Sketch] = {}

    def lacks(self, key: str) -> bool:
        """Tell whether a sketch of this content, or part of it, is still to be made."""
        return self._writer is not None and key not in self._gathered and not self._writer.stored(key + ".sketch")

    def add(self, key: str, pieces: torch.Tensor, rows: torch.Tensor, clean: Optional[Cleaning] = None) -> None:
        """Take a sketch that the dump lacks.

        Args:
            key: Content id, with the name of a part behind it where it is not the whole content.
            pieces: What :func:`~precflow.agent.measure.sketch.sketch` returned, on any device.
            rows: Norms of the rows.
            clean: What both were given.
        """
        self._gathered[key] = _Sketch(pieces, rows, clean)

    def store(self) -> None:
        """Write everything that was gathered, except for what float32 cannot hold.

        Raises:
            WriteError: They could not be stored.
        """
        gathered, self._gathered = self._gathered, {}
        writer = self._writer
        if not gathered or writer is None:
            return
        hosts = to_hosts([tensor for each in gathered.values() for tensor in (each.pieces, each.rows)])
        fetched = zip(gathered.values(), hosts[::2], hosts[1::2])
        sketches = [_Sketch(pieces, rows, each.clean) for each, pieces, rows in fetched]
        for key, each, sums in zip(gathered, sketches, _add_all(sketches)):
            for what, numbers in (("sketch", sums), ("rows", undo_scaling(each.rows, each.clean))):
                # Undoing the scaling may go beyond float32, and a sketch of infinities would tell nothing.
                if math.isfinite(numbers.sum(dtype=torch.float64).item()):
                    writer.tensor("%s.%s" % (key, what), numbers, owned=True)


def _add_all(sketches: List[_Sketch]) -> List[torch.Tensor]:
    """Return each sketch as it is stored; those of one form are added up together."""
    alike: Dict[Tuple[object, ...], List[int]] = {}
    for number, each in enumerate(sketches):
        # Sketches whose values were scaled are added up alone: each has an exponent of its own to undo.
        alone = number if each.clean is not None and each.clean.exponent else -1
        alike.setdefault((each.pieces.shape, each.pieces.dtype, alone), []).append(number)
    sums: Dict[int, torch.Tensor] = {}
    for numbers in alike.values():
        if len(numbers) == 1:
            sums[numbers[0]] = add_pieces(sketches[numbers[0]].pieces, sketches[numbers[0]].clean)
        else:
            together = torch.stack([sketches[number].pieces for number in numbers]).sum(2, dtype=torch.float64)
            sums.update(zip(numbers, together.to(torch.float32).unbind(0)))
    return [sums[number] for number in range(len(sketches))]

"""What will be known of a tensor: a ticket is given out at once, and filled in when the tensor is measured."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Optional, Tuple

from precflow.agent.contract import DETAIL_FACTS, DIGEST_SIZE

if TYPE_CHECKING:
    from precflow.agent.measure.parts import KeptPart
    from precflow.agent.measure.statistics import Statistics


class Ticket:
    """What will be known of a tensor once it is measured.

    Attributes:
        detail: One of ``contract.DETAILS``: what was asked for.
        kept: The part that everything but the content id speaks of; ``None`` is the whole tensor.
        content: Content id; ``""`` until the flush, and for good where there are no plain bytes, or only statistics.
        mark: Checksum of the sums of its rows, where statistics are all that was asked for.
        statistics: In the order of ``contract.STATISTICS``, where they were asked for and its type has them.
        stored: The dump holds the tensor, or the part.
        row_norms: Key, start and number of the norms of its rows, where statistics are all that was asked for.
        text: A detail, and what a record line of that detail says of the tensor, for whoever writes lines.
    """

    __slots__ = ("content", "detail", "kept", "mark", "row_norms", "statistics", "stored", "text")

    def __init__(self, detail: str, kept: Optional[KeptPart]) -> None:
        self.detail = detail
        self.kept = kept
        self.content = ""
        self.mark = ""
        self.row_norms: Optional[Tuple[str, int, int]] = None
        self.text = ("", "")
        self.statistics: Optional[Statistics] = None
        self.stored = False

    @property
    def known(self) -> str:
        """What equal bits have in common: the content id, or the mark."""
        return self.content or self.mark

    def covers(self, detail: str, kept: Optional[KeptPart]) -> bool:
        """Tell whether it holds what a record of this detail and part needs."""
        # A sketch comes with statistics, for example, so that a record that wants statistics needs no second measurement.
        if detail != self.detail and detail not in DETAIL_FACTS[self.detail].covers:
            return False
        return detail == "digest" or kept is self.kept  # a content id speaks of the whole tensor


# The detail ``statistics`` has no content id, which costs several times what statistics do. A mark stands in for it: equal
# tensors have the same one. It is good within one dump only: another device adds up in another order.


def mark_of_sums(sums: bytes) -> str:
    """Return the mark of an ordinary tensor, 32 hex digits, from the extremes, sums and norms of its rows."""
    return hashlib.blake2b(sums, digest_size=DIGEST_SIZE).hexdigest()


def mark_of_statistics(statistics: Optional[Statistics]) -> str:
    """Return the mark of any other tensor, from its statistics; ``""`` without any."""
    return "" if statistics is None else mark_of_sums(repr(statistics).encode("ascii"))

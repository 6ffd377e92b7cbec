"""Marks: what equal tensors have in common within one dump where no content id was taken."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Optional

from precflow.agent.contract import DIGEST_SIZE

if TYPE_CHECKING:
    from precflow.agent.statistics import Statistics


def mark_of(sums: bytes) -> str:
    """Return the mark of an ordinary tensor, 32 hex digits, from the extremes, sums and norms of its rows."""
    return hashlib.blake2b(sums, digest_size=DIGEST_SIZE).hexdigest()


def mark_of_statistics(known: Optional[Statistics]) -> str:
    """Return the mark of any other tensor, from its statistics; ``""`` without any."""
    return "" if known is None else mark_of(repr(known).encode("ascii"))

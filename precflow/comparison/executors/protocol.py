"""What an executor has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from precflow.comparison.batches import Batch
from precflow.comparison.reading import Found, Terms
from precflow.dumps.reader import Dump


class Executor(Protocol):
    """Reads batches somewhere."""

    def run(self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: Terms) -> Iterator[tuple[Batch, list[Found]]]:
        """Yield every batch with what its readings gave, in their order; batches may come in any order.

        Raises:
            PrecflowError: They cannot be read there at all.
        """

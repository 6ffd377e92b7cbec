"""The evidence of one side that was recorded twice: everything in little detail, then some of it in full."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy.typing as npt

from precflow.agent.contract import Identity
from precflow.dumps.header import Header
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call, Record


class TwoPasses:
    """A dump whose records and graph are the first pass's, and whose tensors are the second's where it has them.

    A tensor of the second pass stands for a record of the first where both have the same content id, and so the same bits;
    also where the first kept no content id, only statistics.

    Args:
        first: The dump of everything.
        second: The dump of the suspect region.
    """

    def __init__(self, first: Dump, second: Dump) -> None:
        self.first = first
        self.second = second

    @property
    def header(self) -> Header:
        """The first pass's: what was run is the same."""
        return self.first.header

    @property
    def fills(self) -> tuple[float, ...] | None:
        """The constants by which the first pass tells mask fills; ``None`` where it does it by another definition."""
        return self.first.fills

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls of the first pass; records whose tensor the second pass has say ``stored``."""
        return [call for call in self._calls if step in (None, call.step) and rank in (None, call.rank)]

    def tensor(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor.

        Raises:
            DumpError: Neither pass stored it, or it cannot be read.
        """
        again = self._again(record)
        return self.first.tensor(record) if again is None else self.second.tensor(again)

    def sketch(self, record: Record) -> npt.NDArray[Any] | None:
        """Return a record's sketch, of the first pass."""
        return self.first.sketch(record)

    def rows(self, record: Record) -> npt.NDArray[Any] | None:
        """Return the norms of a record's rows, of the first pass."""
        return self.first.rows(record)

    @functools.cached_property
    def _calls(self) -> list[Call]:
        return [
            msgspec.structs.replace(
                call,
                inputs=tuple(self._with_tensor(record) for record in call.inputs),
                outputs=tuple(self._with_tensor(record) for record in call.outputs),
            )
            for call in self.first.calls()
        ]

    def _with_tensor(self, record: Record) -> Record:
        stored = record.stored or self._again(record) is not None
        return record if stored == record.stored else msgspec.structs.replace(record, stored=True)

    def _again(self, record: Record) -> Record | None:
        """Return the same record of the second pass, if it stored the same content, or nobody knows what it was before."""
        found = self._kept.get(record.identity)
        return found if found is not None and (found.key == record.key or _has_statistics_only(record)) else None

    @functools.cached_property
    def _kept(self) -> dict[Identity, Record]:
        return {record.identity: record for record in _records(self.second) if record.stored}


def find_unrepeated(first: Dump, second: Dump) -> list[str]:
    """Return the identities of the second pass's records whose bits are not those of the first, in order of completion.

    A record that the first pass does not have is one of them: the second time something else was run. One of which the first
    kept statistics alone is none: :func:`count_unknown`.
    """
    return [record.text for before, record in _pairs(first, second) if record.content and not _repeats(before, record)]


def count_unknown(first: Dump, second: Dump) -> int:
    """Return how many records of the second pass the first kept statistics of alone: nobody can tell whether bits repeat."""
    return sum(
        before is not None and _has_statistics_only(before) for before, record in _pairs(first, second) if record.content
    )


def _pairs(first: Dump, second: Dump) -> Iterator[tuple[Record | None, Record]]:
    """Yield the records of the second pass, each behind the same one of the first."""
    known = {record.identity: record for record in _records(first)}
    return ((known.get(record.identity), record) for record in _records(second))


def _records(dump: Dump) -> Iterator[Record]:
    return (record for call in dump.calls() for record in (*call.inputs, *call.outputs))


def _repeats(before: Record | None, record: Record) -> bool:
    return before is not None and (before.content == record.content or _has_statistics_only(before))


def _has_statistics_only(record: Record) -> bool:
    """Tell whether statistics are all that was kept, so that no content id can be compared."""
    return bool(record.mark and not record.content)

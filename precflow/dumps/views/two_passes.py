"""Combines two dumps of one side: the first has all records in little detail, the second some of them with their tensors."""

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
from precflow.dumps.shards import Location
from precflow.dumps.views.same_start import find_given, is_cut


class TwoPasses:
    """Acts as one dump with the calls and records of the first pass, and with tensors of the second pass where it has them.

    A record of the first pass gets the tensor of the second if both have the same content id, and so the same bits. It also
    gets it if the first pass has no content id to compare: it kept only statistics, or did not read a weight.

    Args:
        first: The dump of all records.
        second: The dump of the suspect region.
    """

    def __init__(self, first: Dump, second: Dump) -> None:
        self.first = first
        self.given, self.is_cut = find_given(first), is_cut(first)
        self.second = second

    @property
    def header(self) -> Header:
        """The header of the first pass; the second ran the same workload."""
        return self.first.header

    @property
    def fills(self) -> tuple[float, ...] | None:
        """The constants that the first pass counts as mask fills; ``None`` if its agent used another definition of fills."""
        return self.first.fills

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls of the first pass; records whose tensor the second pass has are marked as ``stored``."""
        return [call for call in self._calls if step in (None, call.step) and rank in (None, call.rank)]

    def tensor(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor.

        Raises:
            DumpError: Neither pass stored it, or it cannot be read.
        """
        again = self._find_second(record)
        return self.first.tensor(record) if again is None else self.second.tensor(again)

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies, in a shard of either pass; ``None`` if none holds all of it.

        Raises:
            DumpError: Its shard is cut short or damaged.
        """
        again = self._find_second(record)
        return self.second.locate(record if again is None else again) or self.first.locate(record)

    def sketch(self, record: Record) -> npt.NDArray[Any] | None:
        """Return a record's sketch from the first pass."""
        return self.first.sketch(record)

    def rows(self, record: Record) -> npt.NDArray[Any] | None:
        """Return the norms of a record's rows from the first pass."""
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
        stored = record.stored or self._find_second(record) is not None
        return record if stored == record.stored else msgspec.structs.replace(record, stored=True)

    def _find_second(self, record: Record) -> Record | None:
        """Return the same record of the second pass if its tensor may be used for this one (see the class), else ``None``."""
        again = self._stored_again.get(record.identity)
        return again if again is not None and (again.key == record.key or _has_no_content_id(record)) else None

    @functools.cached_property
    def _stored_again(self) -> dict[Identity, Record]:
        return {record.identity: record for record in _records(self.second) if record.stored}


def find_unrepeated(first: Dump, second: Dump) -> list[str]:
    """Return the identities of records of the second pass whose bits differ from the first, in order of completion.

    Records that the first pass does not have are included, because then something else was run. Records of which the first pass
    kept only statistics are not: :func:`count_unknown` counts those. Nor are weights that it did not read: the headers of both
    have the content ids of all weights.
    """
    return [
        record.text
        for before, record in _pairs(first, second)
        if record.content and (before is None or not (before.content == record.content or _has_no_content_id(before)))
    ]


def count_unknown(first: Dump, second: Dump) -> int:
    """Return for how many records it is unknown whether their bits repeat, because the first pass kept only statistics."""
    pairs = [(before, record) for before, record in _pairs(first, second) if before is not None and record.content]
    return sum(1 for before, _ in pairs if before.mark and not before.content)


def _pairs(first: Dump, second: Dump) -> Iterator[tuple[Record | None, Record]]:
    """Yield each record of the second pass, preceded by the same record of the first pass or ``None``."""
    known = {record.identity: record for record in _records(first)}
    return ((known.get(record.identity), record) for record in _records(second))


def _records(dump: Dump) -> Iterator[Record]:
    return (record for call in dump.calls() for record in (*call.inputs, *call.outputs))


def _has_no_content_id(record: Record) -> bool:
    """Tell whether the bits of a record are not known: only statistics were kept, or it is a weight that was not read."""
    return not record.content and bool(record.mark or record.weight)

"""Combines two dumps of one side: the first has all records in little detail, the second some of them with their tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from precflow.agent.contract import Identity
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.shards import Location
from precflow.dumps.views.derived import DerivedDump


class TwoPasses(DerivedDump):
    """One dump with the calls and records of the first pass, and with tensors of the second pass where it has them.

    A record of the first pass gets the tensor of the second if both have the same content id, and so the same bits. It also
    gets it if the first pass has no content id to compare: it kept only statistics, or did not read a weight.

    Args:
        first: The dump of all records; header, statistics and sketches are its own.
        second: The dump of the suspect region.
    """

    def __init__(self, first: Dump, second: Dump) -> None:
        super().__init__(first)
        self.first, self.second = first, second

    def _derive_calls(self) -> list[Call]:
        """Return the calls of the first pass; records whose tensor the second pass has are marked as ``stored``."""
        return [
            msgspec.structs.replace(
                call,
                inputs=tuple(self._with_tensor(record) for record in call.inputs),
                outputs=tuple(self._with_tensor(record) for record in call.outputs),
            )
            for call in self.first.calls()
        ]

    def tensor(self, record: Record) -> Array:
        """Return a record's tensor.

        Raises:
            DumpError: Neither pass stored it, or it cannot be read.
        """
        again = self._find_second(record)
        return self.first.tensor(record) if again is None else self.second.tensor(again)

    def view(self, record: Record) -> Array:
        """Return what :meth:`tensor` returns, but without checking the bytes; the caller checks them with :meth:`check`."""
        again = self._find_second(record)
        return self.first.view(record) if again is None else self.second.view(again)

    def check(self, record: Record, found: str | None = None) -> None:
        """Make sure that a record's tensor is the one that was recorded, in the pass that it is read from."""
        again = self._find_second(record)
        if again is None:
            self.first.check(record, found)
        else:
            self.second.check(again, found)

    def gather(self, records: Sequence[Record]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of small tensors together; ``None`` if one of them is read from the second pass."""
        return None if any(self._find_second(record) for record in records) else self.first.gather(records)

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies, in a shard of either pass; ``None`` if none holds all of it.

        Raises:
            DumpError: Its shard is cut short or damaged.
        """
        again = self._find_second(record)
        return self.second.locate(record if again is None else again) or self.first.locate(record)

    def verify(self) -> list[str]:
        """Read every byte of both passes and return all problems, in words."""
        return [*self.first.verify(), *self.second.verify()]

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

"""A dump that is another one seen in another way: with fewer calls, other names, or tensors that are made of recorded ones."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from precflow.dumps.header import Header
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.shards import Location
from precflow.errors import DumpError


@dataclass(frozen=True)
class MadeTensor:
    """How a tensor is made of recorded ones.

    Attributes:
        sources: Their records.
        apply: Makes it of their tensors.
    """

    sources: tuple[Record, ...]
    apply: Callable[[Sequence[Array]], Array]


class DerivedDump(ABC):
    """A dump that has everything as another one has it, except what a subclass says.

    A subclass says which calls it has (:meth:`_derive_calls`), and of which records it makes the tensors (:meth:`_make`).

    Args:
        whole: The dump.
        header: Its header as it is seen; that of the dump without one.

    Attributes:
        whole: The dump that this one is made of.
        given: What the models of both sides were given, as far as a view has found out (``batches.find_given``).
        is_cut: Whether calls that other data reached were left out.
        left_out: What another tool's format cannot hold, and so is not compared, in words.
        parts: Into how many calls its models' calls were cut that are seen as one; 1 if none were.
        decodes_again: Whether calls that compute all tokens again are seen by their last tokens.
    """

    def __init__(self, whole: Dump, header: Header | None = None) -> None:
        self.whole = whole
        self.path: Path = whole.path
        self.sealed: bool = whole.sealed
        self.header = header if header is not None else whole.header
        self.given: object = getattr(whole, "given", None)
        self.is_cut = is_cut(whole)
        self.left_out: tuple[str, ...] = getattr(whole, "left_out", ())
        self.parts: int = count_parts(whole)
        self.decodes_again: bool = decodes_again(whole)
        self._made: dict[str, MadeTensor] = {}  # mark of a record -> how its tensor is made

    @abstractmethod
    def _derive_calls(self) -> list[Call]:
        """Return all calls as they are seen, ordered by rank, step and completion; asked for once."""

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls as they are seen, ordered by rank, step and completion, or only those of one step or rank."""
        calls = self._calls
        if step is None and rank is None:
            return list(calls)
        return [call for call in calls if step in {None, call.step} and rank in {None, call.rank}]

    @functools.cached_property
    def _calls(self) -> list[Call]:
        return self._derive_calls()

    @property
    def damage(self) -> tuple[str, ...]:
        """What could not be read of the dump as it is."""
        return self.whole.damage

    @property
    def altered(self) -> Mapping[tuple[int, int], str]:
        """``(rank, step)`` of altered record files of the dump as it is."""
        return self.whole.altered

    @property
    def fills(self) -> tuple[float, ...] | None:
        """The constants that are counted as mask fills; ``None`` if something else was counted."""
        return self.whole.fills

    def tensor(self, record: Record) -> Array:
        """Return a record's tensor, made of the recorded ones if this view makes it.

        Raises:
            DumpError: It was not stored, or cannot be read.
        """
        made = self._find_made(record)
        return self.whole.tensor(record) if made is None else made.apply([self.whole.tensor(each) for each in made.sources])

    def view(self, record: Record) -> Array:
        """Return what :meth:`tensor` returns; only the bytes of tensors that are not made here are left unchecked."""
        return self.whole.view(record) if self._find_made(record) is None else self.tensor(record)

    def check(self, record: Record, found: str | None = None) -> None:
        """Make sure that a record's tensor is the recorded one; what is made here was checked by :meth:`tensor`."""
        if self._find_made(record) is None:
            self.whole.check(record, found)

    def gather(self, records: Sequence[Record]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of small tensors together; ``None`` if one of them is made here."""
        return None if any(self._find_made(record) for record in records) else self.whole.gather(records)

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies; ``None`` for one that is made here."""
        return self.whole.locate(record) if self._find_made(record) is None else None

    def sketch(self, record: Record) -> Array | None:
        """Return a record's sketch; one whose tensor is made has none."""
        return self.whole.sketch(record)

    def rows(self, record: Record) -> Array | None:
        """Return the norms of a record's rows; one whose tensor is made has none."""
        return self.whole.rows(record)

    def verify(self) -> list[str]:
        """Read every byte of the dump as it is and return all problems, in words."""
        return self.whole.verify()

    def _make(self, record: Record, made: MadeTensor, shape: tuple[int, ...], how: Any) -> Record:
        """Return a record whose tensor is made of others.

        Args:
            record: The record that gets it.
            made: How it is made.
            shape: Its shape.
            how: Text that is another for every way to make it.
        """
        # With the record's name: of two records with equal bits, one may be stored and the other not.
        text = f"{record.text} {[source.key for source in made.sources]} {how}"
        mark = f"made-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
        self._made[mark] = made
        return msgspec.structs.replace(
            record,
            shape=shape,
            content="",
            mark=mark,
            stored=all(source.stored and not source.part for source in made.sources),
            statistics=None,
            row_norms=None,
        )

    def _find_made(self, record: Record) -> MadeTensor | None:
        self._calls  # noqa: B018  makes them: a record may come from another object of the same dump
        return self._made.get(record.mark)


class Excerpt(DerivedDump):
    """Some calls of a dump.

    Args:
        whole: The dump.
        kept: The calls, ordered by rank, step and completion.
    """

    def __init__(self, whole: Dump, kept: Sequence[Call]) -> None:
        super().__init__(whole)
        self._kept = list(kept)

    def _derive_calls(self) -> list[Call]:
        return self._kept


def find_tensors(dump: Dump) -> dict[str, Record]:
    """Return an input or output with each content that was kept whole, by the content."""
    return {
        record.content: record
        for call in dump.calls()
        for record in (*call.inputs, *call.outputs)
        if record.content and record.stored and not record.part
    }


def read_whole(dump: Dump, record: Record | None) -> Array | None:
    """Return a tensor; ``None`` if there is none, it was not kept whole, or it cannot be read."""
    if record is None or not record.stored or record.part:
        return None
    try:
        return dump.tensor(record)
    except DumpError:
        return None


def decodes_again(dump: object) -> bool:
    """Tell whether calls of a dump that compute all tokens again are seen by their last tokens."""
    return bool(getattr(dump, "decodes_again", False))


def count_parts(dump: object) -> int:
    """Return into how many calls the calls of a dump's models were cut that are seen as one; 1 if none were."""
    return int(getattr(dump, "parts", 1))


def is_cut(dump: object) -> bool:
    """Tell whether a dump lacks the calls that other data reached."""
    return bool(getattr(dump, "is_cut", False))

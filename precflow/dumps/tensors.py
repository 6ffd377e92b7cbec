"""The tensors of a dump by content, in whichever shard they lie; each is checked once, by the id that it was asked for by."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import COMPRESSED
from precflow.dumps.compressed import restored
from precflow.dumps.digest import content_of, lanes
from precflow.dumps.dtypes import name_of
from precflow.dumps.pages import release
from precflow.dumps.records import Record
from precflow.dumps.shards import Shard
from precflow.errors import DumpError

_PIECE = 1 << 25  # bytes that are read before their pages are given back; whole blocks of a content id


class Tensors:
    """What the shards of a dump hold; safe to use from several threads.

    Args:
        shards: In the order in which they are searched.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}  # key -> what is wrong with its bytes, "" where nothing is
        self._reading: dict[str, threading.Lock] = {}

    @functools.cached_property
    def _index(self) -> tuple[dict[str, Shard], tuple[str, ...]]:
        index: dict[str, Shard] = {}
        problems: list[str] = []
        for shard in reversed(self._shards):  # so that the first one that has a key is the one that stays
            try:
                found = shard.index
            except DumpError as error:
                problems.append(error.message)
                continue
            problems += [found.problem] if found.problem else []
            index.update(dict.fromkeys(found.slots, shard))
        return index, tuple(reversed(problems))

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the shards, as far as that shows without reading tensors."""
        return self._index[1]

    def holds(self, record: Record) -> bool:
        """Tell whether a shard has the record's tensor, or the kept part of it."""
        index, _ = self._index
        return record.key in index or record.key + COMPRESSED in index

    def view(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor, its bytes unchecked: mapped, or made from what was compressed.

        Raises:
            DumpError: No shard holds it, it ends before it should, or it has another type or shape than the record.
        """
        index, problems = self._index
        key = record.key
        shard = index.get(key) or index.get(key + COMPRESSED)
        if shard is None:
            raise DumpError("; ".join(("no shard holds its tensor", *problems)))
        if key not in index:
            return restored(self.attached(key + COMPRESSED), record.dtype, record.shape, shard.name)
        array = shard.view(key)
        dtype, shape = name_of(array.dtype), array.shape
        if dtype != record.dtype or (shape != record.shape and not record.part):
            wanted = f"{record.dtype} {list(record.shape)}"
            raise DumpError(f"{shard.name} holds {dtype} {list(shape)} where the record says {wanted}")
        return array

    def check(self, record: Record, found: str | None = None, array: npt.NDArray[Any] | None = None) -> None:
        """Make sure that the bytes of a record's tensor are those that were recorded; they are read once in this process.

        Args:
            record: The record.
            found: Its content id where the caller has computed it from :meth:`view`: then nothing is read here.
            array: What :meth:`view` returned, where the caller has it.

        Raises:
            DumpError: They are not, or the tensor cannot be had.
        """
        if record.part:
            self.attached(record.key)
            return
        with self._turn(record.key):
            if record.key not in self._found:
                seen = found or _content(self.view(record) if array is None else array)
                self._found[record.key] = "" if seen == record.content else self._damage(record.key)
        self._told(record.key)

    def attached(self, key: str) -> npt.NDArray[Any]:
        """Return what lies under a key that is no content id (a sketch, rows, a part), checked against the shard's index.

        Raises:
            DumpError: It is not there, or not what was written.
            KeyError: No shard holds the key.
        """
        shard = self._index[0][key]
        array = shard.view(key)
        with self._turn(key):
            if key not in self._found:
                sealed = shard.index.checksums.get(key, "")
                size = len(sealed) // 2
                flat = array.reshape(-1).view(np.uint8)
                good = 1 <= size <= 64 and hashlib.blake2b(flat.data, digest_size=size).hexdigest() == sealed
                self._found[key] = "" if good else self._damage(key)
        self._told(key)
        return array

    def find(self, key: str) -> npt.NDArray[Any] | None:
        """Return what :meth:`attached` returns, ``None`` where no shard holds the key.

        Raises:
            DumpError: It is there, and not what was written.
        """
        return self.attached(key) if key in self._index[0] else None

    def verify(self) -> list[str]:
        """Read everything and return what is wrong: of each shard one line, however many of its tensors are."""
        found: dict[str, list[str]] = {}
        for key, shard in self._index[0].items():
            if problem := self._problem(key, shard):
                found.setdefault(shard.name, []).append(problem)
        return [problems[0] + (f"; so are {len(problems) - 1} more" if problems[1:] else "") for problems in found.values()]

    def _problem(self, key: str, shard: Shard) -> str:
        """Read what lies under a key and say what is wrong with it, ``""`` where nothing is."""
        try:
            if "." in key:
                self.attached(key)
                return ""
            with self._turn(key):
                if key not in self._found:
                    self._found[key] = "" if _content(shard.view(key)) == key else self._damage(key)
        except DumpError as error:
            return error.message
        return self._found[key]

    def _turn(self, key: str) -> threading.Lock:
        """Return the lock of one key: several may be read at once, but none twice."""
        with self._lock:
            return self._reading.setdefault(key, threading.Lock())

    def _told(self, key: str) -> None:
        if self._found[key]:
            raise DumpError(self._found[key])

    def _damage(self, key: str) -> str:
        index, _ = self._index
        shard = index.get(key) or index[key + COMPRESSED]
        return f"{shard.name} is damaged: the bytes of {key} are not those that were written"


def _content(array: npt.NDArray[Any]) -> str:
    """Return the content id of a tensor; of a mapped one no more than ``_PIECE`` is kept in memory."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    parts = []
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        parts.append(lanes(piece))
        release(piece)
    blocks = np.concatenate(parts) if parts else np.empty((0, 2), np.uint32)
    return content_of(name_of(array.dtype), array.shape, blocks)

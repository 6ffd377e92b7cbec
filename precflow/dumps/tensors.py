"""Finds the tensors of a dump by content id, in whichever shard they are, and checks each of them once."""

from __future__ import annotations

import functools
import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import DTYPE_OF_SAFETENSORS
from precflow.dumps.digest import content_ids, id_of_lanes, lanes
from precflow.dumps.dtypes import NUMPY_DTYPES, name_of
from precflow.dumps.mapped_pages import release
from precflow.dumps.records import Record
from precflow.dumps.shards import Location, Shard, has_checksum
from precflow.errors import DumpError

_COMPRESSED = ".zlib"  # suffix of the keys of compressed tensors, which earlier versions could write
SMALL = 1 << 14  # bytes of a tensor that is read together with others like it
_TOGETHER = 1 << 8  # of them
_PIECE = 1 << 25  # bytes that are read before their pages are released; a multiple of the block size of content ids


class Tensors:
    """The tensors in the shards of a dump; several threads may use it.

    Args:
        shards: In the order in which they are searched.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}  # key -> what is wrong with its bytes, "" if they were checked and are good
        self._reading: dict[str, threading.Lock] = {}  # one per key that is read: a second thread waits

    @functools.cached_property
    def _index(self) -> tuple[dict[str, Shard], tuple[str, ...]]:
        index: dict[str, Shard] = {}
        problems: list[str] = []
        for shard in reversed(self._shards):  # so that for a key in several shards the first one stays
            try:
                shard_index = shard.index
            except DumpError as error:
                problems.append(error.message)
                continue
            problems += [shard_index.problem] if shard_index.problem else []
            if any(key.endswith(_COMPRESSED) for key in shard_index.slots):
                problems.append(f"{shard.name} holds tensors that an earlier version compressed: record the dump again")
            index.update(dict.fromkeys(shard_index.slots, shard))
        return index, tuple(reversed(problems))

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the shards, as far as their indices show; tensors are not read."""
        return self._index[1]

    def holds(self, record: Record) -> bool:
        """Tell whether a shard has the record's tensor, or the part of it that was kept."""
        index, _ = self._index
        return record.key in index

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies, ``None`` if no shard holds it; its bytes are checked (:meth:`check`).

        The tensor is found by its content, so that one which its own record did not store (the output of a transpose) is found
        where another record did (the input of the matmul behind it).

        Raises:
            DumpError: Its shard is cut short, its bytes are damaged, or it has another type or shape than the record.
        """
        key = record.key
        shard = None if not record.content or record.part else self._index[0].get(key)
        if shard is None:
            return None
        if self._problems.get(key) != "":  # else it was found good before
            self.check(record)
        return shard.locate(key)

    def view(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor, mapped, without checking its bytes.

        Raises:
            DumpError: No shard holds it, its shard is cut short, or it has another type or shape than the record.
        """
        index, problems = self._index
        key = record.key
        shard = index.get(key)
        if shard is None:
            raise DumpError("; ".join(("no shard holds its tensor", *problems)))
        array = shard.view(key)
        dtype, shape = name_of(array.dtype), array.shape
        if dtype != record.dtype or (shape != record.shape and not record.part):
            wanted = f"{record.dtype} {list(record.shape)}"
            raise DumpError(f"{shard.name} holds {dtype} {list(shape)} where the record says {wanted}")
        return array

    def gather(self, records: Sequence[Record]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of small whole tensors of one type and shape, copied and checked: ``[tensors, bytes]``.

        Args:
            records: At least one; of at most ``SMALL`` bytes each.

        Returns:
            ``None`` if any of them is missing, damaged or another tensor than its record says: :meth:`view` and :meth:`check`
            tell which, and why.
        """
        index, _ = self._index
        places: dict[Shard, list[int]] = defaultdict(list)
        for number, record in enumerate(records):
            shard = index.get(record.key)
            if shard is None or not record.stored or record.part or self._problems.get(record.key):
                return None
            places[shard].append(number)
        dtype, shape = records[0].dtype, records[0].shape
        data = np.empty((len(records), math.prod(shape) * NUMPY_DTYPES[dtype].itemsize), np.uint8)
        for shard, numbers in places.items():
            found = shard.gather([records[number].key for number in numbers], dtype, shape)
            if found is None:
                return None
            data[numbers] = found
        contents = [record.content for record in records]
        if content_ids(dtype, shape, data) != contents:
            return None
        with self._lock:
            for content in contents:
                self._problems.setdefault(content, "")
        return data

    def check(self, record: Record, found: str | None = None, array: npt.NDArray[Any] | None = None) -> None:
        """Check that the bytes of a record's tensor are those that were recorded; each is read once in this process.

        Args:
            record: The record.
            found: Its content id, if the caller has computed it from :meth:`view`; then nothing is read here, and bytes that
                were good when they were read before count as damaged if they no longer are.
            array: The result of :meth:`view`, if the caller has it.

        Raises:
            DumpError: They are not, or the tensor is missing.
        """
        if record.part:  # the content id is that of the whole tensor, so a part has a checksum of its own
            self.load_attached(record.key)
            return
        with self._lock_of(record.key):
            if record.key not in self._problems or found not in {None, record.content}:
                seen = found or _compute_content_id(self.view(record) if array is None else array)
                self._problems[record.key] = "" if seen == record.content else self._describe_damage(record.key)
            self._reading.pop(record.key, None)
        self._raise_if_damaged(record.key)

    def load_attached(self, key: str) -> npt.NDArray[Any]:
        """Return the array under a key that is not a content id: a sketch, row norms, a part.

        Its bytes are checked against the checksum in the shard's index.

        Raises:
            DumpError: It cannot be read, or its bytes are damaged.
            KeyError: No shard holds the key.
        """
        shard = self._index[0][key]
        array = shard.view(key)
        with self._lock_of(key):
            if key not in self._problems:
                flat = array.reshape(-1).view(np.uint8)
                is_good = has_checksum(shard.index.checksums.get(key, ""), flat.data)
                self._problems[key] = "" if is_good else self._describe_damage(key)
            self._reading.pop(key, None)
        self._raise_if_damaged(key)
        return array

    def find(self, key: str) -> npt.NDArray[Any] | None:
        """Return what :meth:`load_attached` returns, or ``None`` if no shard holds the key.

        Raises:
            DumpError: It is there, but cannot be read or is damaged.
        """
        return self.load_attached(key) if key in self._index[0] else None

    def verify(self) -> list[str]:
        """Read every tensor and return what is wrong, one line per shard however many of its tensors are damaged."""
        self._accept_small()
        damage: dict[str, list[str]] = {}
        for key, shard in self._index[0].items():
            if problem := self._find_problem(key, shard):
                damage.setdefault(shard.name, []).append(problem)
        return [problems[0] + (f"; so are {len(problems) - 1} more" if problems[1:] else "") for problems in damage.values()]

    def _accept_small(self) -> None:
        """Note that small tensors are good, those of one type and shape together; what else there is, is looked at singly."""
        alike: dict[tuple[Shard, str, tuple[int, ...]], list[str]] = defaultdict(list)
        for key, shard in self._index[0].items():
            slot = shard.index.slots[key]
            if "." not in key and key not in self._problems and 0 < slot.data_offsets[1] - slot.data_offsets[0] <= SMALL:
                alike[shard, slot.dtype, slot.shape].append(key)
        for (shard, name, shape), keys in alike.items():
            dtype = DTYPE_OF_SAFETENSORS.get(name, "")
            for start in range(0, len(keys) if dtype else 0, _TOGETHER):
                some = keys[start : start + _TOGETHER]
                if (data := shard.gather(some, dtype, shape)) is not None:
                    good = {key for key, found in zip(some, content_ids(dtype, shape, data), strict=True) if key == found}
                    with self._lock:
                        for key in good:  # one by one: `good - self._problems.keys()` goes through all known keys
                            self._problems.setdefault(key, "")

    def _find_problem(self, key: str, shard: Shard) -> str:
        """Read what is stored under a key and return what is wrong with it, ``""`` if nothing is."""
        if self._problems.get(key) == "":
            return ""
        try:
            if "." in key:  # content ids are hex digits; all other keys have a suffix, such as `.sketch`
                self.load_attached(key)
                return ""
            with self._lock_of(key):
                if key not in self._problems:
                    self._problems[key] = "" if _compute_content_id(shard.view(key)) == key else self._describe_damage(key)
                self._reading.pop(key, None)
        except DumpError as error:
            return error.message
        return self._problems[key]

    def _lock_of(self, key: str) -> threading.Lock:
        """Return the lock of one key, so that different tensors are checked in parallel but no tensor twice."""
        with self._lock:
            return self._reading.setdefault(key, threading.Lock())

    def _raise_if_damaged(self, key: str) -> None:
        if self._problems[key]:
            raise DumpError(self._problems[key])

    def _describe_damage(self, key: str) -> str:
        return f"{self._index[0][key].name} is damaged: the bytes of {key} are not those that were written"


def _compute_content_id(array: npt.NDArray[Any]) -> str:
    """Return the content id of a tensor, keeping at most ``_PIECE`` bytes of a mapped one in memory."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    parts = []
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        parts.append(lanes(piece))
        release(piece)
    blocks = np.concatenate(parts) if parts else np.empty((0, 2), np.uint32)
    return id_of_lanes(name_of(array.dtype), array.shape, blocks)

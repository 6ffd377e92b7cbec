"""Writing one safetensors file: an eight-byte length, a JSON index, and the bytes of the tensors one after the other.

The format is described at https://github.com/huggingface/safetensors. The library itself is not used, because the agent runs
in interpreters in which nothing may be installed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from itertools import chain
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import torch

from precflow.agent.contract import DIGEST_SIZE, PADDING, SAFETENSORS_OF_DTYPE
from precflow.agent.measure.content_id import dtype_name
from precflow.agent.measure.transfer import byte_count, byte_pieces

_ALIGNMENT = 8  # bytes; data begin at a multiple of it, so that a memory-mapped float64 is aligned too
HELD_BYTES = 8 << 20  # tensors up to this total wait in memory, and a shard that stays smaller is written in one go
_LEAST_INDEX = 64 << 10  # least number of bytes reserved for index entries still to come, in a larger shard


class TensorEntry(NamedTuple):
    """One tensor of a shard.

    Attributes:
        key: Content id; with a suffix if the tensor is derived from that content, such as ``.sketch``.
        host: The tensor, on the CPU.
        private: Nobody writes to the tensor any more, so its bytes may be read later without a copy.
    """

    key: str
    host: torch.Tensor
    private: bool

    @property
    def dtype(self) -> str:
        """The element type as safetensors names it, such as ``BF16``."""
        return SAFETENSORS_OF_DTYPE[dtype_name(self.host.dtype)]

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return self.host.element_size()

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return byte_count(self.host)

    def freeze(self) -> TensorEntry:
        """Return an entry that later writes to the tensor do not change; copies only a tensor that is not private."""
        return self if self.private else TensorEntry(self.key, self.host.clone(), private=True)


class ShardSeal(NamedTuple):
    """Size of a finished shard in ``bytes``, and the checksum of its ``index``; both go into the step's seal."""

    bytes: int
    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it


def storable(dtype: torch.dtype) -> bool:
    """Tell whether the format has a name for this element type."""
    return dtype_name(dtype) in SAFETENSORS_OF_DTYPE


class ShardFile:
    """A shard that is being written. It has a temporary name until it is closed, so ``path`` never holds half a file.

    The index stands before the data, but its length is known only at the end. A small shard therefore waits in memory and is
    written in one go, wide elements first. Beyond ``HELD_BYTES``, tensors go to the file as they come, after a gap that is
    reserved for the index, so that memory is bounded whatever the size of shard and tensor. Every tensor begins at a multiple
    of its element size (at most 8), so that it can be memory-mapped; entries named ``padding-N`` fill the bytes in between.

    Args:
        path: Final path of the file.
        limit: Bytes of tensors that the shard takes; a single tensor may be larger.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._partial = path + ".part"
        self._file: Optional[io.FileIO] = None
        self._held: List[TensorEntry] = []
        self._held_bytes = 0
        self._described: List[str] = []
        self._checksums: Dict[str, str] = {}
        self._offset = 0  # bytes of tensors written to the file so far
        self._begun = 0  # position in the file where the tensors begin
        self._index_bytes = len('{"__metadata__":{},}') + _ALIGNMENT  # upper bound for the index of all entries so far

    @property
    def waiting(self) -> int:
        """Bytes of tensors that still wait in memory."""
        return self._held_bytes

    def fits(self, entry: TensorEntry) -> bool:
        """Tell whether this shard has room for an entry; an empty shard takes an entry of any size."""
        if not (self._held or self._offset):
            return True
        if self._offset + self._held_bytes + entry.size > self._limit:
            return False
        # Once the file is open, the gap for the index is fixed: many small tensors can fill it before they reach the limit.
        return self._file is None or self._index_bytes + _index_room(entry) <= self._begun - 8

    def add(self, entry: TensorEntry) -> None:
        """Add an entry; unless it is private, its bytes are written or copied before this returns.

        Raises:
            OSError: The file cannot be written; the entries before this one are unharmed and :meth:`close` still works.
        """
        if self._file is None and self._held_bytes + entry.size > HELD_BYTES:
            # The gap for the index must be chosen now, and the entries to come are not known. So reserve what the index would
            # take at the limit if later tensors were like those so far, plus a quarter. If it fills up, the shard ends early.
            so_far = self._index_bytes + _index_room(entry)
            expected = so_far * self._limit // (self._held_bytes + entry.size) * 5 // 4
            self._open(max(so_far + _LEAST_INDEX, min(expected, self._limit // 16)))
        if self._file is not None:
            self._write(entry)
        else:
            self._held.append(entry.freeze())
            self._held_bytes += entry.size
        self._index_bytes += _index_room(entry)

    def close(self) -> ShardSeal:
        """Write the waiting entries and the index, and give the file its final name.

        Raises:
            OSError: The file cannot be written; the temporary file has been removed.
        """
        try:
            if self._file is None:
                # No entry follows. A small shard needs no padding: with the widest elements first, every offset is a multiple
                # of the next element size.
                described, offset = [], 0
                for each in sorted(self._held, key=lambda entry: -entry.width):
                    described.append(_describe(each, offset))
                    offset += each.size
                self._open(
                    len(_join_index({entry.key: "0" * 2 * DIGEST_SIZE for entry in self._held if "." in entry.key}, described))
                )
            assert self._file is not None
            index = _join_index(self._checksums, self._described).ljust(self._begun - 8)  # the format allows trailing spaces
            head = len(index).to_bytes(8, "little") + index
            self._file.seek(0)
            _write_all(self._file, head)
            self._file.close()
            self._file = None
            os.replace(self._partial, self.path)
        except OSError:
            self.discard()
            raise
        return ShardSeal(len(head) + self._offset, hashlib.blake2b(head, digest_size=DIGEST_SIZE).hexdigest())

    def discard(self) -> None:
        """Drop all entries and remove the temporary file, if there is one."""
        if self._file is not None:
            self._file.close()
        self._file, self._held = None, []
        if os.path.exists(self._partial):
            os.remove(self._partial)

    def _open(self, reserved: int) -> None:
        """Open the file with ``reserved`` bytes for the index, and write the waiting entries."""
        self._file = io.FileIO(self._partial, "w")  # unbuffered: a full disk shows at the write, not at some later flush
        self._begun = 8 + reserved + -reserved % _ALIGNMENT
        self._file.seek(self._begun)
        held, self._held, self._held_bytes = self._held, [], 0
        for each in sorted(held, key=lambda entry: -entry.width):
            self._write(each)

    def _write(self, entry: TensorEntry) -> None:
        assert self._file is not None
        missing = -self._offset % min(entry.width, _ALIGNMENT)
        if missing:
            name = "%s%d" % (PADDING, len(self._described))
            self._write(TensorEntry(name, torch.zeros(missing, dtype=torch.uint8), private=True))
        # A content id is itself a hash of the tensor's bytes. A key with a suffix (".sketch") says nothing about the bytes
        # stored here, so they get a checksum in the file's metadata.
        checksum = hashlib.blake2b(digest_size=DIGEST_SIZE) if "." in entry.key else None
        try:
            for piece in byte_pieces(entry.host):
                _write_all(self._file, piece)
                if checksum is not None:
                    checksum.update(piece)
        except BaseException:
            # Remove the part of this tensor that was written, so that close() can still make a valid file of the others.
            self._file.seek(self._begun + self._offset)
            self._file.truncate()
            raise
        if checksum is not None:
            self._checksums[entry.key] = checksum.hexdigest()
        self._described.append(_describe(entry, self._offset))
        self._offset += entry.size


def _index_room(entry: TensorEntry) -> int:
    """Return an upper bound for the bytes that an entry takes in the index, including a padding entry before it."""
    named = 2 * len(entry.key) + 2 * DIGEST_SIZE if "." in entry.key else len(entry.key)
    return named + 2 * len(str(tuple(entry.host.shape))) + 256


def _describe(entry: TensorEntry, offset: int) -> str:
    facts = {"dtype": entry.dtype, "shape": list(entry.host.shape), "data_offsets": [offset, offset + entry.size]}
    return "%s:%s" % (json.dumps(entry.key), json.dumps(facts, separators=(",", ":")))


def _join_index(checksums: Mapping[str, str], described: Sequence[str]) -> bytes:
    attached = ['"__metadata__":%s' % json.dumps(checksums, separators=(",", ":"))] if checksums else []
    return ("{%s}" % ",".join(chain(attached, described))).encode("ascii")


def _write_all(file: io.FileIO, data: Union[bytes, memoryview]) -> None:
    left = memoryview(data)
    while left:  # an unbuffered write may write only a part: Linux stops at 2 GiB, and where the disk becomes full
        left = left[file.write(left) :]

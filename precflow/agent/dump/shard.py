"""One safetensors file: an eight-byte length, a JSON header, and the bytes of the tensors behind each other.

The format is the one of https://github.com/huggingface/safetensors. It is written here because an agent brings no library
along, into interpreters in which nothing may be installed.
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

ALIGNMENT = 8  # the data begin at a multiple of this many bytes
HELD_BYTES = 8 << 20  # tensors that wait in memory: a smaller shard is written at once
_LEAST_INDEX = 64 << 10  # bytes that are left at least for what else comes into the index of a larger one


class TensorEntry(NamedTuple):
    """One tensor of a shard.

    Attributes:
        key: Content id; with a suffix where it is something else of that content.
        host: The tensor, on the CPU.
        private: Nobody writes to it any more: its bytes can be taken later.
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
        """Return the entry as it is now, whatever is written to the tensor afterwards."""
        return self if self.private else TensorEntry(self.key, self.host.clone(), private=True)


class ShardSeal(NamedTuple):
    """What is known of a finished shard: its ``bytes`` and the checksum of its ``index``, as the seal lists them."""

    bytes: int
    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it


def storable(dtype: torch.dtype) -> bool:
    """Tell whether the format has a name for this element type."""
    return dtype_name(dtype) in SAFETENSORS_OF_DTYPE


class ShardFile:
    """A shard under way, under a temporary name until it is closed: nothing half-written is ever found at ``path``.

    A small shard waits in memory and is written at once, wide elements first. From ``HELD_BYTES`` on, tensors go to the file as
    they come, behind a gap that is left for the index, so that memory is bounded whatever the size of shard and tensor. Every
    tensor begins at a multiple of its element size and can be mapped; a few bytes named ``padding-N`` see to that.

    Args:
        path: Where it goes.
        limit: Bytes of tensors that it takes; one tensor may be larger.
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
        self._offset = 0  # bytes of tensors in the file
        self._begun = 0  # where they begin in the file
        self._index_bytes = len('{"__metadata__":{},}') + ALIGNMENT  # at most, with everything that has been added

    @property
    def waiting(self) -> int:
        """Bytes of tensors that are not in the file yet."""
        return self._held_bytes

    def fits(self, entry: TensorEntry) -> bool:
        """Tell whether an entry belongs into this shard; into an empty one every entry does."""
        if not (self._held or self._offset):
            return True
        if self._offset + self._held_bytes + entry.size > self._limit:
            return False
        return self._file is None or self._index_bytes + _index_room(entry) <= self._begun - 8

    def add(self, entry: TensorEntry) -> None:
        """Take an entry; its bytes are written or copied before this returns.

        Raises:
            OSError: The file cannot be written; what it had before can still be closed.
        """
        if self._file is None and self._held_bytes + entry.size > HELD_BYTES:
            self._start_file(entry)
        if self._file is not None:
            self._write(entry)
        else:
            self._held.append(entry.freeze())
            self._held_bytes += entry.size
        self._index_bytes += _index_room(entry)

    def close(self) -> ShardSeal:
        """Write what waits and the index, and give the file its name.

        Raises:
            OSError: The file cannot be written; the temporary file has been removed.
        """
        try:
            if self._file is None:
                self._open(self._measure_index())
            return self._finish()
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written, if anything was."""
        if self._file is not None:
            self._file.close()
        self._file, self._held = None, []
        if os.path.exists(self._partial):
            os.remove(self._partial)

    def _start_file(self, entry: TensorEntry) -> None:
        """Leave room for as long an index as the entries so far let expect, and write what waits."""
        so_far = self._index_bytes + _index_room(entry)
        expected = so_far * self._limit // (self._held_bytes + entry.size) * 5 // 4
        self._open(max(so_far + _LEAST_INDEX, min(expected, self._limit // 16)))

    def _open(self, reserved: int) -> None:
        """Open the file with room for an index of so many bytes, and write what waits."""
        self._file = io.FileIO(self._partial, "w")
        self._begun = 8 + reserved + -reserved % ALIGNMENT
        self._file.seek(self._begun)
        held, self._held, self._held_bytes = self._held, [], 0
        for each in sorted(held, key=lambda one: -one.width):
            self._write(each)

    def _write(self, entry: TensorEntry) -> None:
        assert self._file is not None
        missing = -self._offset % min(entry.width, ALIGNMENT)
        if missing:
            name = "%s%d" % (PADDING, len(self._described))
            self._write(TensorEntry(name, torch.zeros(missing, dtype=torch.uint8), private=True))
        checksum = hashlib.blake2b(digest_size=DIGEST_SIZE) if "." in entry.key else None
        try:
            for piece in byte_pieces(entry.host):
                _write_all(self._file, piece)
                if checksum is not None:
                    checksum.update(piece)
        except BaseException:
            self._file.seek(self._begun + self._offset)
            self._file.truncate()
            raise
        if checksum is not None:
            self._checksums[entry.key] = checksum.hexdigest()
        self._described.append(_describe(entry, self._offset))
        self._offset += entry.size

    def _measure_index(self) -> int:
        """Return how long the index will be when nothing comes any more; no padding is needed in a small shard."""
        described, offset = [], 0
        for each in sorted(self._held, key=lambda one: -one.width):
            described.append(_describe(each, offset))
            offset += each.size
        return len(_join_index({each.key: "0" * 2 * DIGEST_SIZE for each in self._held if "." in each.key}, described))

    def _finish(self) -> ShardSeal:
        assert self._file is not None
        index = _join_index(self._checksums, self._described).ljust(self._begun - 8)
        head = len(index).to_bytes(8, "little") + index
        self._file.seek(0)
        _write_all(self._file, head)
        self._file.close()
        self._file = None
        os.replace(self._partial, self.path)
        return ShardSeal(len(head) + self._offset, hashlib.blake2b(head, digest_size=DIGEST_SIZE).hexdigest())


def _index_room(entry: TensorEntry) -> int:
    """Return the most bytes that an entry takes in the index, with a padding before it."""
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
    while left:
        left = left[file.write(left) :]

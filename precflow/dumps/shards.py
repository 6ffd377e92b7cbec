"""Reads one shard of tensors, a safetensors file mapped into memory. Its index is checked here, its tensors by the callers."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from precflow.agent import intake
from precflow.agent.contract import DTYPE_OF_SAFETENSORS, PADDING
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.garbage import collector_off
from precflow.dumps.header import FileSeal, describe_error
from precflow.dumps.mapped_pages import release
from precflow.errors import DumpError

_LENGTH_BYTES = 8  # little-endian length of the JSON that follows
_LONGEST_INDEX = 100_000_000  # bytes; the format's own limit
_METADATA = "__metadata__"


class ShardEntry(msgspec.Struct, frozen=True, gc=False):
    """Where one tensor lies: element type (safetensors' name), sizes, first and last byte (exclusive) within the data.

    The defaults let ``__metadata__``, which has other keys, be decoded as a slot like the rest; it is removed afterwards.
    """

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] = (0, 0)


class Location(NamedTuple):
    """Where the bytes of a tensor lie.

    Attributes:
        path: The file.
        begin: First byte.
        end: Byte behind the last one.
    """

    path: Path
    begin: int
    end: int


class _Attached(msgspec.Struct, rename={"checksums": _METADATA}):
    checksums: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The index of a shard.

    Attributes:
        slots: Key -> where its tensor lies.
        checksums: BLAKE2b (hex) of the bytes under each key that is not a content id.
        base: Byte of the file at which the data begins.
        problem: The file is longer or shorter than it was when it was sealed; its tensors may be intact all the same.
    """

    slots: Mapping[str, ShardEntry]
    checksums: Mapping[str, str]
    base: int = 0
    problem: str = ""


_SLOTS = msgspec.json.Decoder(dict[str, ShardEntry])


class Shard:
    """A safetensors file of a dump, opened lazily; safe to use from several threads.

    Args:
        path: The file.
        name: Its name in the dump, for messages.
        seal: Size of the file and checksum of the index; ``None`` if nothing was sealed.
    """

    def __init__(self, path: Path, name: str, seal: FileSeal | None) -> None:
        self.path = path
        self.name = name
        self._seal = seal
        self._lock = threading.Lock()
        self._bytes: npt.NDArray[np.uint8] | None = None

    @functools.cached_property
    def index(self) -> ShardIndex:
        """Keys and places of the tensors; nothing but the index is read.

        Raises:
            DumpError: The file is missing, or its index is damaged or not the one that was sealed.
        """
        try:
            return _read_index(self.path, self.name, self._seal)
        except (OSError, ValueError, RecursionError) as error:
            raise DumpError(f"{self.name} cannot be read: {_describe_error(error)}") from error

    def view(self, key: str) -> npt.NDArray[Any]:
        """Return a tensor as a read-only view of the mapped file, without reading or checking its bytes.

        Raises:
            DumpError: The file does not hold this key, or ends before the tensor does.
        """
        slot, start, stop = self._find_place(key)
        whole = np.empty(0, np.uint8) if start == stop else self._map()  # an empty file cannot be mapped
        try:
            return whole[start:stop].view(NUMPY_DTYPES[DTYPE_OF_SAFETENSORS[slot.dtype]]).reshape(slot.shape)
        except (ValueError, OverflowError) as error:  # dimensions that no array has
            raise DumpError(f"{self.name} is damaged: {key} is of shape {list(slot.shape)}: {error}") from error

    def gather(self, keys: Sequence[str], dtype: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of many tensors of one type and shape, copied: ``[tensors, bytes]``. They are not checked.

        Args:
            keys: Of this file.
            dtype: Name of the element type.
            shape: Sizes.

        Returns:
            ``None`` if any of them is another tensor than that, or lies where :meth:`view` would refuse it: it says why.
        """
        known, base = self.index.slots, self.index.base
        slots = [known[key] for key in keys]
        size = math.prod(shape) * NUMPY_DTYPES[dtype].itemsize
        starts = np.array([base + slot.data_offsets[0] for slot in slots])
        is_usual = all(
            DTYPE_OF_SAFETENSORS.get(slot.dtype) == dtype
            and slot.shape == shape
            and slot.data_offsets[1] - slot.data_offsets[0] == size
            for slot in slots
        )
        try:
            if not (size and slots and is_usual and starts.min() >= base and starts.max() + size <= self._measure_file()):
                return None
            whole = self._map()
        except DumpError:
            return None
        copied: npt.NDArray[np.uint8] = np.lib.stride_tricks.sliding_window_view(whole, size)[starts]
        release(whole[starts.min() : starts.max() + size])
        return copied

    def locate(self, key: str) -> Location:
        """Return where a tensor lies in the file.

        Raises:
            DumpError: The file does not hold this key, or its place is not usable (see :meth:`view`).
        """
        return Location(self.path, *self._find_place(key)[1:])

    def _find_place(self, key: str) -> tuple[ShardEntry, int, int]:
        """Return the entry of a key, its first byte in the file and the one behind its last; for errors see :meth:`view`."""
        slot = self.index.slots.get(key)
        if slot is None:
            raise DumpError(f"{self.name} does not hold content {key}")
        if slot.dtype not in DTYPE_OF_SAFETENSORS or min(slot.shape, default=0) < 0:
            raise DumpError(f"{self.name} is damaged: {key} is of type {slot.dtype!r} and shape {list(slot.shape)}")
        base, (begin, end) = self.index.base, slot.data_offsets
        # Python integers: a damaged shape must not overflow.
        needed = math.prod(slot.shape) * NUMPY_DTYPES[DTYPE_OF_SAFETENSORS[slot.dtype]].itemsize
        if end - begin != needed or begin < 0:
            raise DumpError(f"{self.name} is damaged: {key} takes {end - begin} bytes, its shape needs {needed}")
        size = self._measure_file()
        if base + end > size:
            raise DumpError(f"{self.name} is cut short: {key} ends at byte {base + end}, the file at {size}")
        return slot, base + begin, base + end

    def _measure_file(self) -> int:
        """Return the current size of the file: reading a mapping beyond the end of its file kills the process."""
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise DumpError(f"{self.name} cannot be read: {_describe_error(error)}") from error

    def _map(self) -> npt.NDArray[np.uint8]:
        with self._lock:
            if self._bytes is None:
                try:
                    with intake.open_regular(self.path) as file:
                        mapped = np.memmap(file, dtype=np.uint8, mode="r")
                except (OSError, ValueError) as error:
                    raise DumpError(f"{self.name} cannot be mapped: {_describe_error(error)}") from error
                self._bytes = mapped.view(np.ndarray)
            return self._bytes


def _read_index(path: Path, name: str, seal: FileSeal | None) -> ShardIndex:
    with intake.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        if length > min(size - _LENGTH_BYTES, _LONGEST_INDEX):
            sealed = f" and was sealed with {seal.bytes}" if seal is not None and seal.bytes != size else ""
            raise ValueError(f"its index should be {length} bytes long, the file has {size}{sealed}")
        text = file.read(length)
    if seal is not None and not has_checksum(seal.index, head, text):
        raise DumpError(f"{name} is damaged: its index does not have the checksum that it was sealed with")
    with collector_off() as made:
        slots = _share(_SLOTS.decode(text))
        made.append(len(slots))
    checksums = msgspec.json.decode(text, type=_Attached).checksums if slots.pop(_METADATA, None) else {}
    if PADDING.encode() in text:  # takes a hundredth of the time of looking at each key
        for key in [key for key in slots if key.startswith(PADDING)]:
            del slots[key]
    problem = ""
    if seal is not None and size != seal.bytes:
        problem = f"{name} is {'cut short' if size < seal.bytes else 'too long'}: {size} bytes instead of {seal.bytes}"
    return ShardIndex(slots, checksums, _LENGTH_BYTES + length, problem)


def _share(slots: dict[str, ShardEntry]) -> dict[str, ShardEntry]:
    """Return an index of which equal types and shapes, and the keys that records have too, are kept in memory once."""
    put, shapes = msgspec.structs.force_setattr, dict[tuple[int, ...], tuple[int, ...]]()
    for slot in slots.values():
        put(slot, "dtype", sys.intern(slot.dtype))
        put(slot, "shape", shapes.setdefault(slot.shape, slot.shape))
    return {sys.intern(key): slot for key, slot in slots.items()}


def has_checksum(sealed: str, *pieces: bytes | memoryview) -> bool:
    """Tell whether the bytes of some pieces, one after the other, have a BLAKE2b checksum given in hex digits."""
    size = len(sealed) // 2  # two hex digits a byte; blake2b raises an error for sizes other than 1 to 64
    if not 1 <= size <= 64:
        return False
    state = hashlib.blake2b(digest_size=size)
    for piece in pieces:
        state.update(piece)
    return state.hexdigest() == sealed.lower()


def _describe_error(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    return describe_error(error)

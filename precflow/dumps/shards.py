"""One shard of tensors: a safetensors file, mapped into memory, checked once before its first use."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import DTYPE_OF_SAFETENSORS
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.header import FileSeal
from precflow.errors import DumpError

_LENGTH_BYTES = 8  # little-endian length of the JSON that follows
_CHUNK = 1 << 22
_LONGEST_INDEX = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies: element type (torch's name), sizes, first byte and the byte behind the last, in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def checksum(path: Path, digest_size: int) -> str:
    """Return the BLAKE2b of a file as hex, read in pieces of 4 MiB; ``digest_size`` is in bytes (1 to 64)."""
    digest = hashlib.blake2b(digest_size=digest_size)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def seal_problem(path: Path, name: str, seal: FileSeal) -> str:
    """Compare a file with its seal and say what is wrong with it, ``""`` where nothing is."""
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    if size != seal.bytes:
        return f"{name} is {'cut short' if size < seal.bytes else 'too long'}: {size} bytes instead of {seal.bytes}"
    digest_size = len(seal.blake2b) // 2
    if not 1 <= digest_size <= 64 or checksum(path, digest_size) != seal.blake2b.lower():
        return f"{name} is damaged: its bytes do not have the checksum that the header names"
    return ""


class Shard:
    """A safetensors file of a dump, opened lazily; safe to use from several threads.

    Args:
        path: The file.
        name: Its name in the dump, for messages.
        seal: What the header says about it; ``None`` for an unsealed dump, whose bytes cannot be checked.
    """

    def __init__(self, path: Path, name: str, seal: FileSeal | None) -> None:
        self.path = path
        self.name = name
        self._seal = seal
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._slots: dict[str, Slot] | None = None
        self._bytes: npt.NDArray[np.uint8] | None = None

    def slots(self) -> dict[str, Slot]:
        """Return content id -> place of each tensor; only the index is read.

        Raises:
            DumpError: The file is missing, or its index is torn.
        """
        if self._slots is None:
            try:
                self._slots = _read_index(self.path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DumpError(f"{self.name} cannot be read: {_reason(error)}") from error
        return self._slots

    def check(self) -> None:
        """Compare the bytes with the seal, the first time only; without a seal there is nothing to compare.

        Raises:
            DumpError: The file is missing, cut short, or damaged.
        """
        with self._lock:
            if self._problem is None:
                self._problem = seal_problem(self.path, self.name, self._seal) if self._seal else ""
        if self._problem:
            raise DumpError(self._problem)

    def tensor(self, content: str) -> npt.NDArray[Any]:
        """Return one tensor as a read-only view of the mapped file.

        Raises:
            DumpError: The file is damaged, does not hold this content, or ends before the tensor does.
        """
        self.check()
        slot = self.slots().get(content)
        if slot is None:
            raise DumpError(f"{self.name} does not hold content {content}")
        dtype = NUMPY_DTYPES[slot.dtype]
        needed = math.prod(slot.shape) * dtype.itemsize
        if slot.stop - slot.start != needed:
            raise DumpError(f"{self.name} is damaged: {content} takes {slot.stop - slot.start} bytes, its shape needs {needed}")
        data = self._map()
        if slot.stop > data.size:
            raise DumpError(f"{self.name} is cut short: {content} ends at byte {slot.stop}, the file at {data.size}")
        return data[slot.start : slot.stop].view(dtype).reshape(slot.shape)

    def _map(self) -> npt.NDArray[np.uint8]:
        with self._lock:
            if self._bytes is None:
                try:
                    mapped = np.memmap(self.path, dtype=np.uint8, mode="r")
                except (OSError, ValueError) as error:
                    raise DumpError(f"{self.name} cannot be mapped: {error}") from error
                self._bytes = mapped.view(np.ndarray)
            return self._bytes


def _read_index(path: Path) -> dict[str, Slot]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > min(size - _LENGTH_BYTES, _LONGEST_INDEX):
            raise ValueError(f"its index should be {length} bytes long, the file has {size}")
        index = json.loads(file.read(length).decode("utf-8"))
    base = _LENGTH_BYTES + length
    return {content: _slot(entry, base) for content, entry in index.items() if content != "__metadata__"}


def _slot(entry: dict[str, Any], base: int) -> Slot:
    start, stop = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    if not 0 <= start <= stop or min(shape, default=0) < 0:
        raise ValueError(f"offsets {entry['data_offsets']} and shape {entry['shape']} make no sense")
    return Slot(DTYPE_OF_SAFETENSORS[entry["dtype"]], shape, base + start, base + stop)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    return f"key {error} is missing or unknown" if isinstance(error, KeyError) else str(error)

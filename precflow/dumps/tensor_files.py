"""Files that hold single tensors: ``.pt`` of ``torch.save``, ``.npy`` and ``.npz`` of NumPy, ``.safetensors``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent import intake
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.shards import Location, Shard
from precflow.dumps.torch_files import SavedFile, SavedTensor, check_saved, read_saved
from precflow.errors import DumpError

ENDINGS = (".pt", ".pth", ".npy", ".npz", ".safetensors")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorFile:
    """One tensor in a file.

    Attributes:
        path: The file; its ending says how it is read.
        member: Which of the tensors in it; ``""`` if it holds one.
    """

    path: Path
    member: str = ""

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.path.name} ({self.member})" if self.member else self.path.name

    def read(self) -> Array:
        """Return the tensor, mapped where the format allows it (not from ``.npz``).

        Raises:
            DumpError: The file is missing, cut short, damaged, or holds no such tensor.
        """
        array = self._read()
        if array.dtype not in _READ:
            raise DumpError(f"{self.name} holds elements of type {array.dtype}, which no tensor has")
        return array

    def locate(self) -> Location | None:
        """Return where the bytes of the tensor lie, in C order; ``None`` if no file holds them so."""
        if self.path.suffix in {".pt", ".pth"}:
            return self._find_saved().locate()
        if self.path.suffix == ".safetensors":
            return _open_shard(self.path).locate(self.member)
        array = self._read() if self.path.suffix == ".npy" else None
        if isinstance(array, np.memmap) and array.flags.c_contiguous and array.nbytes:
            return Location(self.path, array.offset, array.offset + array.nbytes)
        return None

    def verify(self) -> None:
        """Read every byte and compare it with the checksums in the file; ``.npy`` and ``.safetensors`` have none.

        Raises:
            DumpError: It is damaged.
        """
        if self.path.suffix in {".pt", ".pth"}:
            check_saved(self.path, _read_saved_once(self.path, *_date(self.path)).entries)
        elif self.path.suffix == ".npz":
            check_saved(self.path)
        else:
            self.read()

    def _read(self) -> Array:
        if self.path.suffix in {".pt", ".pth"}:
            return self._find_saved().read()
        if self.path.suffix == ".safetensors":
            return _open_shard(self.path).view(self.member)
        try:
            intake.open_regular(self.path).close()
            if self.path.suffix == ".npz":
                with np.load(self.path, allow_pickle=False) as archive:
                    return np.asarray(archive[self.member])
            return _map_npy(self.path)
        except FileNotFoundError:
            raise DumpError(f"{self.name} is missing") from None
        except Exception as error:  # NumPy reads a damaged header as Python, which raises anything
            raise DumpError(f"{self.name} cannot be read: {error}") from error

    def _find_saved(self) -> SavedTensor:
        tensors = _read_saved_once(self.path, *_date(self.path)).tensors
        if self.member not in tensors:
            held = f"{len(tensors)} tensors in a container" if tensors else "no tensor"
            raise DumpError(f"{self.path.name} holds {held}, expected {self.member or 'one tensor'}")
        return tensors[self.member]


@dataclass(frozen=True)
class WidenedFile(TensorFile):
    """A tensor of bfloat16 in an ``.npy`` file of float32: NumPy has no bfloat16, so that some tools write it so."""

    def read(self) -> Array:
        """Return the tensor in bfloat16.

        Raises:
            DumpError: The file cannot be read, or holds numbers that no bfloat16 is.
        """
        array = super().read()
        if array.dtype != np.float32:
            return array
        narrow = array.astype(NUMPY_DTYPES["bfloat16"])
        if not np.array_equal(narrow.astype(np.float32), array, equal_nan=True):
            raise DumpError(f"{self.name} holds float32, and not the bfloat16 that the dump says")
        return narrow

    def locate(self) -> None:
        """Return ``None``: no file holds the bytes."""


_READ = frozenset(NUMPY_DTYPES.values())


def _date(path: Path) -> tuple[int, int]:
    """Return size and time of a file; two zeros if it is not there, which reading it says better."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=1 << 16)  # each file is asked for its tensors when it is opened, compared and verified
def _read_saved_once(path: Path, size: int, time: int) -> SavedFile:
    del size, time  # a file that was written anew is another one
    return read_saved(path)


def _map_npy(path: Path) -> Array:
    loaded: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return loaded


@functools.lru_cache(maxsize=8)
def _open_shard(path: Path) -> Shard:
    return Shard(path, path.name, None)


def find_file(path: Path, dtype: str) -> TensorFile:
    """Return the file of a tensor that a tool says to be of a type."""
    return WidenedFile(path) if dtype == "bfloat16" and path.suffix == ".npy" else TensorFile(path)


def list_members(path: Path) -> list[str]:
    """Return the names of the tensors in a file; ``[""]`` if it holds a single one without a name.

    Raises:
        DumpError: The file cannot be read.
    """
    if path.suffix == ".npy":
        return [""]
    if path.suffix in {".pt", ".pth"}:
        return list(read_saved(path).tensors)
    if path.suffix == ".safetensors":
        return list(_open_shard(path).index.slots)
    try:
        intake.open_regular(path).close()
        with np.load(path, allow_pickle=False) as archive:
            return list(archive.files)
    except Exception as error:  # a damaged archive raises anything
        raise DumpError(f"{path.name} cannot be read: {error}") from error

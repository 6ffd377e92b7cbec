"""Reads tensors that ``torch.save`` wrote, mapped into memory, without torch and without running what such a file may hold.

A file is a zip archive: ``NAME/data.pkl`` describes the tensors, ``NAME/data/0`` and so on hold their bytes, uncompressed. The
description is a pickle, which can call any function of any module. Here it can call a few functions alone, each of which only
notes what it was given; everything else is refused, as ``torch.load(weights_only=True)`` refuses it.
"""

from __future__ import annotations

import functools
import io
import math
import mmap
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from precflow.agent import intake
from precflow.agent.contract import name_keys
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.shards import Location
from precflow.dumps.stored_zip import Entry, is_whole, list_entries
from precflow.errors import DumpError

Array = npt.NDArray[Any]

_LARGEST_PICKLE = 1 << 24  # bytes of a description; that of a checkpoint with 10 000 tensors takes 2 MB
_SMALL = 1 << 16  # bytes of a tensor that is read: to map a file takes longer
_LOCAL_HEADER = 30  # bytes before the name of an entry in a zip archive; two lengths stand at its end
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}


class SavedTensor(NamedTuple):
    """Where a saved tensor lies in its file.

    Attributes:
        dtype: Name of its element type.
        shape: Sizes.
        strides: Elements from one to the next along each axis.
        path: The file.
        begin: Byte at which its first element lies.
        end: Byte behind the bytes that it shares with others.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    path: Path
    begin: int
    end: int

    @property
    def is_contiguous(self) -> bool:
        """Its elements lie in the file as they do in an array in C order."""
        wanted, step = [], 1
        for size in reversed(self.shape):
            wanted.append(step)
            step *= size
        sizes = zip(self.shape, self.strides, reversed(wanted), strict=True)
        return math.prod(self.shape) == 0 or all(size == 1 or stride == usual for size, stride, usual in sizes)

    def read(self) -> Array:
        """Return the tensor as a read-only view of the mapped file.

        Raises:
            DumpError: The file is missing or shorter than it was.
        """
        dtype = NUMPY_DTYPES[self.dtype]
        if not math.prod(self.shape):
            return np.empty(self.shape, dtype)
        try:
            with intake.open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.end:
                    raise DumpError(f"{self.path.name} is cut short: its tensor ends at byte {self.end}, the file at {size}")
                is_small = self.end - self.begin <= _SMALL
                whole = _read_between(file.fileno(), self.begin, self.end) if is_small else _map(file)
        except (OSError, ValueError) as error:
            raise DumpError(f"{self.path.name} cannot be read: {error}") from error
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        return np.ndarray(self.shape, dtype, np.frombuffer(whole, np.uint8), 0 if is_small else self.begin, strides)

    def locate(self) -> Location | None:
        """Return where its bytes lie; ``None`` if they do not lie there in C order."""
        if not self.is_contiguous:
            return None
        return Location(self.path, self.begin, self.begin + math.prod(self.shape) * NUMPY_DTYPES[self.dtype].itemsize)


class SavedFile(NamedTuple):
    """What is known of a file before its tensors are read.

    Attributes:
        tensors: By their paths in what was saved, such as ``model.fc.weight``; ``""`` for a single tensor.
        entries: The parts of the file, with their checksums; ``None`` if it is no archive of plain form.
    """

    tensors: Mapping[str, SavedTensor]
    entries: Sequence[Entry] | None


def read_saved(path: Path) -> SavedFile:
    """Return the tensors of a file. Only the description is read.

    Raises:
        DumpError: It cannot be read, was written by a torch before 1.6, or wants to run code.
    """
    try:
        with intake.open_regular(path) as file:
            whole = _read_or_map(file)
            entries: Sequence[Entry] | None = list_entries(whole)
            plain = None if entries is None else _read_plainly(path, whole, entries)
            if plain is None:  # zipfile reads it, or says what is wrong
                entries = None
                with zipfile.ZipFile(file) as archive:
                    plain = _read_description(path, file, archive)
    except DumpError:
        raise
    except zipfile.BadZipFile as error:
        raise DumpError(
            f"{path.name} is damaged, or was written by a torch before 1.6: {error}",
            next_step="copy it again, or save it again with a newer torch",
        ) from error
    except Exception as error:  # a damaged pickle raises anything
        raise DumpError(f"{path.name} cannot be read: {type(error).__name__}: {error}") from error
    return SavedFile(dict(_walk(plain, "")), entries)


def check_saved(path: Path, entries: Sequence[Entry] | None = None) -> None:
    """Read every byte of a file and compare it with the checksums in it.

    Args:
        path: The file.
        entries: Of :class:`SavedFile`, if they are known.

    Raises:
        DumpError: A part has another checksum than the one that it was written with.
    """
    try:
        with intake.open_regular(path) as file:
            if entries is not None and _are_whole(file, entries):
                return
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    with archive.open(entry) as part:
                        while part.read(1 << 22):  # at the end of an entry, zipfile compares the checksum of what was read
                            pass
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        raise DumpError(f"{path.name} is damaged: {error}") from error


def _are_whole(file: io.BufferedReader, entries: Sequence[Entry]) -> bool:
    """Tell whether a file has these entries with these checksums."""
    read = functools.partial(_read_between, file.fileno())  # not mapped: pages that were read count as memory of ours
    return list_entries(_read_or_map(file)) == entries and all(is_whole(read, entry) for entry in entries)


def _read_or_map(file: io.BufferedReader) -> bytes | mmap.mmap:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0) if size <= _SMALL else _map(file)


def _map(file: io.BufferedReader) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_between(descriptor: int, begin: int, end: int) -> bytes:
    return os.pread(descriptor, end - begin, begin)


def _read_plainly(path: Path, whole: bytes | mmap.mmap, entries: Sequence[Entry]) -> Any:
    """Return what an archive of plain form describes; ``None`` if anything about it is unusual."""
    by_name = {entry.name: entry for entry in entries}
    described = [entry for entry in entries if entry.name.rpartition("/")[2] == "data.pkl"]
    if len(described) != 1 or described[0].end - described[0].begin > _LARGEST_PICKLE:
        return None
    folder = described[0].name.removesuffix("data.pkl")
    order = by_name.get(f"{folder}byteorder")
    if not all(is_whole(lambda begin, end: whole[begin:end], entry) for entry in (described[0], order) if entry is not None):
        return None
    if order is not None and whole[order.begin : order.end] != b"little":
        return None
    pickled = io.BytesIO(whole[described[0].begin : described[0].end])
    return _Description(pickled, path, lambda key: by_name[f"{folder}data/{key}"][1:3]).load()


def _read_description(path: Path, file: io.BufferedReader, archive: zipfile.ZipFile) -> Any:
    described = [entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == "data.pkl"]
    if len(described) != 1:
        raise DumpError(f"{path.name} is no file of torch.save: it has {len(described)} entries data.pkl, expected one")
    if described[0].file_size > _LARGEST_PICKLE:
        raise DumpError(
            f"{path.name} describes its tensors in {described[0].file_size} bytes, at most {_LARGEST_PICKLE} are read"
        )
    folder = described[0].filename.removesuffix("data.pkl")
    entries = {entry.filename: entry for entry in archive.infolist()}
    order = f"{folder}byteorder"
    if order in entries and archive.read(order) != b"little":
        raise DumpError(f"{path.name} was written on a machine of another byte order")

    def find(key: str) -> tuple[int, int]:
        """Return first and last byte of a storage in the file."""
        entry = entries[f"{folder}data/{key}"]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise DumpError(f"{path.name} is compressed, which torch.save never does")
        file.seek(entry.header_offset + _LOCAL_HEADER - 4)
        lengths = file.read(4)
        begin = (
            entry.header_offset + _LOCAL_HEADER + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        )
        return begin, begin + entry.file_size

    return _Description(io.BytesIO(archive.read(described[0])), path, find).load()


class _Storage(NamedTuple):
    dtype: str
    begin: int
    end: int


class _DtypeName(str):
    """The name of a type, in a pickle that has the type itself."""

    __slots__ = ()


class _Description(pickle.Unpickler):
    """Reads ``data.pkl``.

    Args:
        file: Its bytes.
        path: The file that it is part of.
        find: Returns first and last byte of a storage by its key.
    """

    def __init__(self, file: io.BytesIO, path: Path, find: Callable[[str], tuple[int, int]]) -> None:
        super().__init__(file)
        self._path = path
        self._find = find
        self._known: dict[tuple[str, str], Any] = {
            ("torch._utils", "_rebuild_tensor_v2"): self._describe,
            ("torch._utils", "_rebuild_tensor_v3"): self._describe_untyped,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            ("torch._tensor", "_rebuild_from_type_v2"): lambda _, __, arguments, ___: self._describe(*arguments),
            ("torch", "Size"): tuple,
            ("collections", "OrderedDict"): OrderedDict,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few functions that a description needs."""
        if (module, name) in self._known:
            return self._known[module, name]
        if module in {"torch", "torch.storage"} and name in _STORAGES:
            return _DtypeName(_STORAGES[name])
        if module == "torch" and name in NUMPY_DTYPES:
            return _DtypeName(name)
        raise DumpError(
            f"{self._path.name} wants {module}.{name}, which is no part of a tensor: no code of a file is run",
            next_step="save tensors alone: torch.save({name: tensor.detach().cpu()}, path)",
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """Return a storage."""
        word, dtype, key, _, count = pid
        if word != "storage" or not isinstance(dtype, _DtypeName):
            raise DumpError(f"{self._path.name} has a storage of an unknown kind")
        begin, end = self._find(str(key))
        if end - begin < int(count) * NUMPY_DTYPES[dtype].itemsize:
            raise DumpError(f"{self._path.name} is damaged: storage {key} has {end - begin} bytes for {count} of {dtype}")
        return _Storage(str(dtype), begin, end)

    def _describe(self, storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> SavedTensor:
        return self._place(storage, storage.dtype, offset, size, stride)

    def _describe_untyped(
        self, storage: _Storage, offset: int, size: Any, stride: Any, _: Any, __: Any, dtype: Any, *___: Any
    ) -> SavedTensor:
        return self._place(storage, str(dtype), offset, size, stride)

    def _place(self, storage: _Storage, dtype: str, offset: int, size: Any, stride: Any) -> SavedTensor:
        shape, strides = tuple(map(int, size)), tuple(map(int, stride))
        if len(shape) != len(strides) or min((*shape, *strides, int(offset)), default=0) < 0:
            raise DumpError(f"{self._path.name} is damaged: a tensor of shape {list(shape)} with strides {list(strides)}")
        width = NUMPY_DTYPES[dtype].itemsize
        last = offset + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
        if math.prod(shape) and storage.begin + (last + 1) * width > storage.end:
            raise DumpError(f"{self._path.name} is damaged: a tensor of shape {list(shape)} reaches beyond its storage")
        begin = storage.begin + offset * width
        return SavedTensor(dtype, shape, strides, self._path, begin, storage.begin + (last + 1) * width)


def _walk(plain: Any, place: str, depth: int = 0) -> Iterator[tuple[str, SavedTensor]]:
    """Yield the tensors in nested values, with their paths."""
    if depth > 100:
        raise DumpError("its values are nested more than 100 deep")
    if isinstance(plain, SavedTensor):
        yield place, plain
        return
    if isinstance(plain, Mapping):
        # The keys of a state dict are names with dots, which are joined as they are.
        names = [key if isinstance(key, str) else name for key, name in zip(plain, name_keys(plain), strict=True)]
        for name, value in zip(names, plain.values(), strict=True):
            yield from _walk(value, f"{place}.{name}" if place else name, depth + 1)
    elif isinstance(plain, (list, tuple)):
        for number, value in enumerate(plain):
            yield from _walk(value, f"{place}.{number}" if place else str(number), depth + 1)

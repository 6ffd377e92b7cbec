"""Cuts the pairs to read into batches, and keeps the results of finished ones so that a killed comparison can continue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from precflow.comparison.fused.summary import SUMMARY_VERSION
from precflow.comparison.reading import PairResult, Reading, ReadOptions
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.files import write_bytes

BYTES = 300_000_000  # of both sides: some 0.2 s of reading, a hundred times the 2 ms that Dask needs for a task
READINGS = 2_500  # at most: a pair takes 3 kB while its batch is read, and results of small tensors are kept now and then too
_SUM = 16  # bytes of the checksum at the head of a file


class Batch(msgspec.Struct, frozen=True):
    """Pairs that are read as one task, in order.

    Attributes:
        key: Hex digits of what is read and how: the same work has the same key in every run.
        readings: The pairs.
    """

    key: str
    readings: tuple[Reading, ...]


def make_batches(readings: Sequence[Reading], options: ReadOptions) -> Iterator[Batch]:
    """Cut readings, in order, into batches of about ``BYTES`` bytes."""
    waiting: list[Reading] = []
    size = 0
    for reading in readings:
        waiting.append(reading)
        for record in (reading.reference, reading.target):
            dtype = NUMPY_DTYPES.get(record.dtype)
            size += count_elements(record.shape) * (dtype.itemsize if dtype is not None else 1)
        if size >= BYTES or len(waiting) >= READINGS:
            yield _make_batch(waiting, options)
            waiting, size = [], 0
    if waiting:
        yield _make_batch(waiting, options)


def count_elements(shape: Sequence[int]) -> int:
    """Return how many elements a shape has."""
    size = 1  # not by NumPy, whose integers a made-up shape would overflow
    for length in shape:
        size *= length
    return size


def _make_batch(readings: Sequence[Reading], options: ReadOptions) -> Batch:
    # Everything that a result depends on is in the key, so that a result of another version or other metrics is never found.
    state = hashlib.blake2b(f"{SUMMARY_VERSION} {sorted(options.own)} {options.constants}".encode(), digest_size=16)
    for reading in readings:
        for record in (reading.reference, reading.target):
            state.update(f"\n{record.key} {record.dtype} {record.shape}".encode())
    return Batch(state.hexdigest(), tuple(readings))


class FinishedBatches:
    """Results of finished batches in a folder, one file each; a damaged file is ignored and its batch read again.

    Args:
        folder: Where they are; ``None`` keeps nothing. The caller uses one folder only for the same version and the same user
            metrics. That tensors are the same is sure: a batch's key has their content ids.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, batch: Batch) -> list[PairResult] | None:
        """Return the results of a batch in an earlier run; ``None`` if it did not finish or could not read all its pairs."""
        if self._folder is None:
            return None
        try:
            data = self._path(self._folder, batch).read_bytes()
            if _checksum(data[_SUM:]) != data[:_SUM]:
                return None
            results = msgspec.msgpack.decode(data[_SUM:], type=list[PairResult])
        except (OSError, msgspec.MsgspecError):
            return None
        # What could not be read then is tried again: the disk may be back, or the dump copied once more.
        is_whole = len(results) == len(batch.readings) and not any(result.problem for result in results)
        return results if is_whole else None

    def write(self, batch: Batch, results: Sequence[PairResult]) -> None:
        """Keep what a batch gave.

        Raises:
            OSError: The folder cannot be written to.
        """
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        data = msgspec.msgpack.encode(list(results))
        write_bytes(self._path(self._folder, batch), _checksum(data) + data)

    @staticmethod
    def _path(folder: Path, batch: Batch) -> Path:
        return folder / f"{batch.key}.msgpack"


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM).digest()

"""Threads of this process: the default."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from precflow.comparison.batches import Batch
from precflow.comparison.reading import Found, OpenPair, Part, Reading, Terms
from precflow.dumps.garbage import collector_off
from precflow.dumps.mapped_pages import release
from precflow.dumps.reader import Dump
from precflow.errors import DumpError

_ENOUGH = 1 << 20  # elements that are worth a task of a pool
_HELD = 1 << 19  # elements whose pages a thread holds: of both sides of float32 4 MiB
_AHEAD = 2  # batches that are begun before the first of them is finished

Range = tuple[OpenPair, int, int]


@dataclass(frozen=True, slots=True)
class Threads:
    """Reads with threads; a large tensor with several of them at once.

    Attributes:
        threads: How many; 0 is one a processor.
    """

    threads: int = 0

    def run(self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: Terms) -> Iterator[tuple[Batch, list[Found]]]:
        """Yield every batch, in order, with what its readings gave."""
        begun: deque[_Begun] = deque()
        collector = contextlib.nullcontext() if terms.own else collector_off()  # the user's own code may make cycles
        with collector, ThreadPoolExecutor(self.threads or os.cpu_count() or 1) as pool:
            try:
                for batch in batches:
                    begun.append(_Begun(batch, reference, target, terms, pool))
                    if len(begun) > _AHEAD:
                        yield begun.popleft().finished()
                while begun:
                    yield begun.popleft().finished()
            finally:
                pool.shutdown(cancel_futures=True)


class _Begun:
    """A batch whose pairs are being read."""

    def __init__(self, batch: Batch, reference: Dump, target: Dump, terms: Terms, pool: ThreadPoolExecutor) -> None:
        self._batch = batch
        self._opened = [_open(reading, reference, target, terms) for reading in batch.readings]
        self._tasks: list[Future[list[Part | Found]]] = [pool.submit(_read, task) for task in _tasks(self._opened)]

    def finished(self) -> tuple[Batch, list[Found]]:
        """Wait for all of it, and put the parts of large pairs together."""
        results = iter([result for task in self._tasks for result in task.result()])
        return self._batch, [opened if isinstance(opened, Found) else _found(opened, results) for opened in self._opened]


def _open(reading: Reading, reference: Dump, target: Dump, terms: Terms) -> OpenPair | Found:
    try:
        return OpenPair(reading, reference, target, terms)
    except DumpError as error:
        return Found(problem=error.message)


def _tasks(opened: Sequence[OpenPair | Found]) -> Iterator[list[Range]]:
    """Put ranges together until they are worth a task."""
    task: list[Range] = []
    size = 0
    for pair in opened:
        if isinstance(pair, Found):
            continue
        for start, stop in pair.ranges():
            task.append((pair, start, stop))
            size += stop - start
            if size >= _ENOUGH:
                yield task
                task, size = [], 0
    if task:
        yield task


def _read(task: Sequence[Range]) -> list[Part | Found]:
    """Read ranges, and finish the pairs that are read whole: the thread that waits for all has the interpreter's lock else."""
    results: list[Part | Found] = []
    held: list[npt.NDArray[Any]] = []
    size = 0
    for pair, start, stop in task:
        results.append(_result(pair, pair.read(start, stop), whole=stop - start == pair.size))
        held += pair.views(start, stop)
        size += stop - start
        if size >= _HELD:
            release(*held)
            held, size = [], 0
    release(*held)
    return results


def _result(pair: OpenPair, part: Part, *, whole: bool) -> Part | Found:
    return pair.found([part]) if whole else part


def _found(pair: OpenPair, results: Iterator[Part | Found]) -> Found:
    """Return what a pair gave, of whose ranges the next results are."""
    parts: list[Part] = []
    for _ in pair.ranges():
        result = next(results)
        if isinstance(result, Found):
            return result
        parts.append(result)
    return pair.found(parts)

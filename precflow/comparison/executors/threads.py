"""The default executor: threads of this process. Reading and summing release the interpreter's lock, so threads are enough."""

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
from precflow.comparison.reading import OpenPair, PairResult, PartResult, Reading, ReadOptions
from precflow.dumps.garbage import collector_off
from precflow.dumps.mapped_pages import release
from precflow.dumps.reader import Dump
from precflow.errors import DumpError

_ENOUGH = 1 << 20  # elements that make a task of the pool worth its overhead
_HELD = 1 << 19  # elements whose pages a thread keeps mapped: 4 MiB of both sides of float32
_AHEAD = 2  # batches that are started before the first one is finished, so that no thread waits at its end

PairRange = tuple[OpenPair, int, int]


@dataclass(frozen=True, slots=True)
class Threads:
    """Reads with threads; several of them share a large tensor.

    Attributes:
        threads: How many; 0 is one a processor.
    """

    threads: int = 0

    def run(
        self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: ReadOptions
    ) -> Iterator[tuple[Batch, list[PairResult]]]:
        """Yield every batch, in order, with what its readings gave."""
        begun: deque[_BatchInProgress] = deque()
        collector = contextlib.nullcontext() if terms.own else collector_off()  # the user's own code may make cycles
        with collector, ThreadPoolExecutor(self.threads or os.cpu_count() or 1) as pool:
            try:
                for batch in batches:
                    begun.append(_BatchInProgress(batch, reference, target, terms, pool))
                    if len(begun) > _AHEAD:
                        yield begun.popleft().finish()
                while begun:
                    yield begun.popleft().finish()
            finally:
                pool.shutdown(cancel_futures=True)


class _BatchInProgress:
    """A batch whose pairs threads are reading."""

    def __init__(self, batch: Batch, reference: Dump, target: Dump, terms: ReadOptions, pool: ThreadPoolExecutor) -> None:
        self._batch = batch
        self._opened = [_open_pair(reading, reference, target, terms) for reading in batch.readings]
        self._tasks: list[Future[list[PartResult | PairResult]]] = [
            pool.submit(_read_task, task) for task in _make_tasks(self._opened)
        ]

    def finish(self) -> tuple[Batch, list[PairResult]]:
        """Wait for all its tasks, and merge the parts of large pairs."""
        results = iter([result for task in self._tasks for result in task.result()])
        return self._batch, [
            opened if isinstance(opened, PairResult) else _finish_pair(opened, results) for opened in self._opened
        ]


def _open_pair(reading: Reading, reference: Dump, target: Dump, terms: ReadOptions) -> OpenPair | PairResult:
    try:
        return OpenPair(reading, reference, target, terms)
    except DumpError as error:
        return PairResult(problem=error.message)


def _make_tasks(opened: Sequence[OpenPair | PairResult]) -> Iterator[list[PairRange]]:
    """Group ranges of all pairs into tasks of at least ``_ENOUGH`` elements."""
    task: list[PairRange] = []
    size = 0
    for pair in opened:
        if isinstance(pair, PairResult):
            continue
        for start, stop in pair.ranges():
            task.append((pair, start, stop))
            size += stop - start
            if size >= _ENOUGH:
                yield task
                task, size = [], 0
    if task:
        yield task


def _read_task(task: Sequence[PairRange]) -> list[PartResult | PairResult]:
    """Read ranges, and finish the pairs that have one range: the thread that waits for all tasks would do it one by one."""
    results: list[PartResult | PairResult] = []
    held: list[npt.NDArray[Any]] = []
    size = 0
    for pair, start, stop in task:
        part = pair.read(start, stop)
        results.append(pair.finish([part]) if stop - start == pair.size else part)
        held += pair.views(start, stop)
        size += stop - start
        if size >= _HELD:
            release(*held)
            held, size = [], 0
    release(*held)
    return results


def _finish_pair(pair: OpenPair, results: Iterator[PartResult | PairResult]) -> PairResult:
    """Merge the results of a pair's ranges, which are the next ones."""
    parts: list[PartResult] = []
    for _ in pair.ranges():
        result = next(results)
        if isinstance(result, PairResult):
            return result
        parts.append(result)
    return pair.finish(parts)

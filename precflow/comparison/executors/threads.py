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
from precflow.comparison.reading import OpenPair, PairResult, PartResult, Reading, ReadOptions
from precflow.dumps.garbage import collector_off
from precflow.dumps.mapped_pages import release
from precflow.dumps.reader import Dump
from precflow.errors import DumpError

_ENOUGH = 1 << 20  # elements that are worth a task of a pool
_HELD = 1 << 19  # elements whose pages a thread holds: of both sides of float32 4 MiB
_AHEAD = 2  # batches that are begun before the first of them is finished

PairRange = tuple[OpenPair, int, int]


@dataclass(frozen=True, slots=True)
class Threads:
    """Reads with threads; a large tensor with several of them at once.

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
                        yield begun.popleft().finished()
                while begun:
                    yield begun.popleft().finished()
            finally:
                pool.shutdown(cancel_futures=True)


class _BatchInProgress:
    """A batch whose pairs are being read."""

    def __init__(self, batch: Batch, reference: Dump, target: Dump, terms: ReadOptions, pool: ThreadPoolExecutor) -> None:
        self._batch = batch
        self._opened = [_open_pair(reading, reference, target, terms) for reading in batch.readings]
        self._tasks: list[Future[list[PartResult | PairResult]]] = [
            pool.submit(_read_task, task) for task in _make_tasks(self._opened)
        ]

    def finished(self) -> tuple[Batch, list[PairResult]]:
        """Wait for all of it, and put the parts of large pairs together."""
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
    """Put ranges together until they are worth a task."""
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
    """Read ranges, and finish the pairs that are read whole: the thread that waits for all has the interpreter's lock else."""
    results: list[PartResult | PairResult] = []
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


def _result(pair: OpenPair, part: PartResult, *, whole: bool) -> PartResult | PairResult:
    return pair.finish([part]) if whole else part


def _finish_pair(pair: OpenPair, results: Iterator[PartResult | PairResult]) -> PairResult:
    """Return what a pair gave, of whose ranges the next results are."""
    parts: list[PartResult] = []
    for _ in pair.ranges():
        result = next(results)
        if isinstance(result, PairResult):
            return result
        parts.append(result)
    return pair.finish(parts)

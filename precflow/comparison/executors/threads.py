"""The default executor: threads of this process, which run in parallel because reading and summing release Python's lock."""

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
from precflow.comparison.small_pairs import group_small, read_together
from precflow.dumps.garbage import collector_off
from precflow.dumps.mapped_pages import release
from precflow.dumps.protocol import Dump
from precflow.errors import DumpError

_ENOUGH = 1 << 20  # elements of a task: enough to be worth the pool's overhead for it
_HELD = 1 << 19  # elements that a thread reads before it releases their pages: 4 MiB for both sides of float32
_AHEAD = 2  # batches that are started before the oldest one is finished, so that threads do not idle at the end of a batch

PairRange = tuple[OpenPair, int, int]


@dataclass(frozen=True, slots=True)
class Threads:
    """Reads with threads of this process; several threads may read parts of the same large tensor.

    Attributes:
        threads: Number of threads; 0 is one per processor.
    """

    threads: int = 0

    def run(
        self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: ReadOptions
    ) -> Iterator[tuple[Batch, list[PairResult]]]:
        """Yield every batch, in order, with the results of its readings."""
        begun: deque[_BatchInProgress] = deque()
        # Our own code makes no reference cycles, so the collector would only cost time; a user's metrics may make some.
        collector = contextlib.nullcontext() if terms.own else collector_off()
        with collector, ThreadPoolExecutor(self.threads or os.cpu_count() or 1) as pool:
            try:
                for batch in batches:
                    begun.append(_BatchInProgress(batch, reference, target, terms, pool))
                    if len(begun) > _AHEAD:
                        yield begun.popleft().finish()
                while begun:
                    yield begun.popleft().finish()
            finally:  # also when the caller stops early or an error occurs: do not read the batches that were started ahead
                pool.shutdown(cancel_futures=True)


class _BatchInProgress:
    """A batch whose pairs are being read by the pool's threads."""

    def __init__(self, batch: Batch, reference: Dump, target: Dump, terms: ReadOptions, pool: ThreadPoolExecutor) -> None:
        self._batch = batch
        self._pool_together(reference, target, terms, pool)
        self._opened = [
            _open_pair(reading, reference, target, terms)
            for number, reading in enumerate(batch.readings)
            if number not in self._together
        ]
        self._tasks: list[Future[list[PartResult | PairResult]]] = [
            pool.submit(_read_task, task) for task in _make_tasks(self._opened)
        ]

    def finish(self) -> tuple[Batch, list[PairResult]]:
        """Wait for all tasks of the batch, merge the parts of large pairs, and return the results in order."""
        results = iter([result for task in self._tasks for result in task.result()])
        singly = (opened if isinstance(opened, PairResult) else _finish_pair(opened, results) for opened in self._opened)
        together = {number: task.result()[place] for number, (task, place) in self._together.items()}
        numbers = range(len(self._batch.readings))
        return self._batch, [together[number] if number in together else next(singly) for number in numbers]

    def _pool_together(self, reference: Dump, target: Dump, terms: ReadOptions, pool: ThreadPoolExecutor) -> None:
        """Let the pool read the small pairs in groups; note for each its task, and its place among the results."""
        sides = {"reference": reference, "target": target}
        self._together: dict[int, tuple[Future[list[PairResult]], int]] = {}
        for numbers in group_small(self._batch.readings, terms):
            task = pool.submit(read_together, [self._batch.readings[number] for number in numbers], sides, terms)
            self._together |= {number: (task, place) for place, number in enumerate(numbers)}


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
    """Read the ranges of a task, and finish the pairs that consist of a single range.

    The thread that waits for all tasks could finish them too, but only one by one. Pages are released together, as each release
    interrupts all processors.
    """
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
    """Merge the results of a pair's ranges, which come next in ``results``; or return the result if a thread finished it."""
    parts: list[PartResult] = []
    for _ in pair.ranges():
        result = next(results)
        if isinstance(result, PairResult):
            return result
        parts.append(result)
    return pair.finish(parts)

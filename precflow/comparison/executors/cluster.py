"""The executor for a Dask cluster, on this machine or on many. A task reads one batch; Dask repeats tasks of dead workers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precflow.comparison.batches import Batch
from precflow.comparison.reading import PairResult, ReadOptions, read_pair
from precflow.comparison.user_metrics import DeclaredMetrics, MetricMakers
from precflow.dumps.formats import read_dump
from precflow.dumps.protocol import Dump
from precflow.errors import DumpError, ExecutorError, MissingExtraError
from precflow.version import __version__

_SHARED = "every worker needs the folders of both dumps, at the same paths"
_KEPT = "the same command goes on after the batches that are finished"
_PATIENCE = 30  # seconds to wait for the scheduler to answer, and for the first or a new worker
_PAUSE = 0.02  # seconds between two checks for finished tasks
_TICK = 1.0  # seconds between two checks for workers


@dataclass(frozen=True)
class Cluster:
    """Reads with the workers of a Dask cluster; each worker needs the folders of both dumps at the same paths.

    Attributes:
        address: Address of the scheduler, such as ``tcp://10.0.0.1:8786``; ``""`` starts a cluster on this machine.
        workers: Number of worker processes if a cluster is started here; 0 is one per processor.
        declared: The user's metrics, which each worker imports itself.
    """

    address: str = ""
    workers: int = 0
    declared: DeclaredMetrics = field(default_factory=DeclaredMetrics)

    def run(
        self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: ReadOptions
    ) -> Iterator[tuple[Batch, list[PairResult]]]:
        """Yield every batch with the results of its readings, in the order in which workers finish the batches.

        Raises:
            MissingExtraError: Dask is not installed.
            ExecutorError: No scheduler or worker answers, the last worker is gone, workers have another version of precflow, or
                a batch kills every worker that reads it.
            DumpError: A worker cannot open the dumps, or finds other ones at their paths.
        """
        work = list(batches)
        if not work:
            return
        try:
            distributed = importlib.import_module("distributed")
        except ImportError as error:
            raise MissingExtraError("dask.distributed", "dask") from error
        task = _Task(_locate(reference), _locate(target), terms.compiled, terms.block, terms.constants, self.declared)
        with self._connect(distributed) as client:
            # `pure=False`: read the dumps anew, even if the cluster still holds the result of an equal task.
            futures = {client.submit(task, batch, pure=False): batch for batch in work}
            watch = _Watch(client)
            for future in _iterate_finished(distributed.as_completed(list(futures), loop=client.loop), watch):
                results = self._wait_for_result(future, watch, distributed)
                batch = futures.pop(future)
                future.release()  # so that workers may forget the result; else all of them stay in memory until the end
                yield batch, results

    def _wait_for_result(self, future: Any, watch: _Watch, distributed: Any) -> list[PairResult]:
        """Return the result of a task; if the worker that has it died, wait until Dask has run the task again."""
        while True:
            with contextlib.suppress(distributed.TimeoutError), self._explain_errors(distributed):
                results: list[PairResult] = future.result(timeout=_TICK)
                return results
            watch.look()

    @contextlib.contextmanager
    def _explain_errors(self, distributed: Any) -> Iterator[None]:
        """Turn Dask's errors about dead workers and a lost scheduler into ``ExecutorError``."""
        try:
            yield
        except distributed.KilledWorker as error:
            message = f"workers died again and again of one batch: {error}"
            raise ExecutorError(message, next_step="see the workers' logs; or executor=local") from error
        except concurrent.futures.CancelledError as error:
            message = f"the Dask scheduler at {self.address or 'this machine'} is gone"
            raise ExecutorError(message, next_step=f"start it again; {_KEPT}") from error

    @contextlib.contextmanager
    def _connect(self, distributed: Any) -> Iterator[Any]:
        """Connect to the cluster, after starting one if there is no address, and wait for its first worker."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_silence_dask())
            where = self.address or stack.enter_context(self._start_cluster(distributed))
            try:
                client = stack.enter_context(distributed.Client(where, timeout=_PATIENCE, set_as_default=False))
                client.wait_for_workers(1, timeout=_PATIENCE)
            except (OSError, ValueError) as error:  # a timeout is an OSError
                raise ExecutorError(
                    f"no Dask cluster answers at {self.address or 'this machine'}: {error or type(error).__name__}",
                    next_step="start it:  dask scheduler  and  dask worker ADDRESS;  or leave executor.address out",
                ) from error
            yield client

    @contextlib.contextmanager
    def _start_cluster(self, distributed: Any) -> Iterator[Any]:
        """Start a cluster on this machine, without a dashboard and with its files in a temporary folder."""
        with (
            _keep_environment(),
            tempfile.TemporaryDirectory(prefix="precflow-dask-") as folder,
            distributed.LocalCluster(
                n_workers=self.workers or os.cpu_count() or 1,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                local_directory=folder,
                silence_logs="ERROR",
            ) as cluster,
        ):
            yield cluster


@contextlib.contextmanager
def _keep_environment() -> Iterator[None]:
    """Leave the environment of this process as it was: sides that are started later inherit it.

    Dask sets variables here for its workers to inherit, such as ``MKL_NUM_THREADS=1`` and ``PYTHONHASHSEED``, and leaves them.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@dataclass(frozen=True)
class _DumpLocation:
    """Path and content hash of a dump; by the hash a worker notices if it finds another dump at the same path."""

    path: str
    content: str


@dataclass(frozen=True)
class _Task:
    """The function that workers run on a batch, with everything that they need for it.

    It is pickled, so it has no open dumps and no functions of the user: a worker opens and imports them itself.
    """

    reference: _DumpLocation
    target: _DumpLocation
    compiled: bool
    block: int
    constants: tuple[float, ...]
    declared: DeclaredMetrics
    version: str = __version__

    def __call__(self, batch: Batch) -> list[PairResult]:
        """Read a batch; this runs in a worker."""
        if self.version != __version__:
            raise ExecutorError(
                f"a worker has precflow {__version__}, not {self.version}", next_step="install the same everywhere"
            )
        sides = {"reference": _open_dump(self.reference), "target": _open_dump(self.target)}
        # `lru_cache` would need to hash its argument, and a dataclass with dictionaries in it has no hash: its text is the key.
        key = repr(self.declared)
        if key not in _MAKERS:
            _MAKERS[key] = self.declared.load()
        terms = ReadOptions(self.compiled, self.block, _MAKERS[key], self.constants)
        return [read_pair(reading, sides, terms) for reading in batch.readings]


class _Watch:
    """Checks now and then that the cluster has a worker: Dask itself would wait for one forever."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._looked = self._seen = time.monotonic()

    def look(self) -> None:
        """Check for workers, at most once in ``_TICK`` seconds.

        Raises:
            ExecutorError: There has been no worker for ``_PATIENCE`` seconds.
        """
        if time.monotonic() - self._looked < _TICK:
            return
        self._looked = time.monotonic()
        try:
            has_worker = bool(self._client.nthreads())
        except OSError:  # the scheduler does not answer; waiting for a future raises an error about that
            has_worker = True
        if has_worker:
            self._seen = self._looked
        elif self._looked - self._seen > _PATIENCE:
            message = "no Dask worker is left: the last one died or was stopped, and none came in its place"
            raise ExecutorError(message, next_step=f"see the workers' logs, and start some again; {_KEPT}")


def _iterate_finished(completed: Any, watch: _Watch) -> Iterator[Any]:
    """Yield futures as they finish, and check meanwhile that there are workers."""
    while not completed.is_empty():
        # Not blocking: without any worker no future would ever finish, and the check below would not be reached.
        batch = completed.next_batch(block=False)
        yield from batch
        if not batch:
            time.sleep(_PAUSE)
        watch.look()


@contextlib.contextmanager
def _silence_dask() -> Iterator[None]:
    """Keep Dask from printing tracebacks of errors that we report in words, by raising its log levels for a while."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _locate(dump: Dump) -> _DumpLocation:
    return _DumpLocation(str(dump.path.resolve()), dump.header.content)


@functools.lru_cache(maxsize=4)
def _open_dump(place: _DumpLocation) -> Dump:
    """Open a dump; once in each worker, because the result is cached.

    Raises:
        DumpError: There is no dump at this path of the worker, or another one.
    """
    try:
        dump = read_dump(Path(place.path), allow_unsealed=True)
    except DumpError as error:
        raise DumpError(f"a worker does not see it: {error.message}", next_step=_SHARED) from error
    if dump.header.content != place.content:
        raise DumpError(f"a worker sees another dump at {place.path}", next_step=_SHARED)
    return dump


_MAKERS: dict[str, MetricMakers] = {}

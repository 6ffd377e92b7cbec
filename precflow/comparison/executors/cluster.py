"""A Dask cluster, of this machine or of many: a task is a batch, and a worker that dies costs its tasks a second time."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precflow import __version__
from precflow.comparison.batches import Batch
from precflow.comparison.own import Declared, Makers
from precflow.comparison.reading import Found, Terms, read_all
from precflow.dumps.reader import Dump
from precflow.errors import DumpError, ExecutorError, MissingExtraError

_SHARED = "every worker needs the folders of both dumps, at the same paths"
_PATIENCE = 30  # seconds until a scheduler has answered, and until it has a worker


@dataclass(frozen=True)
class Cluster:
    """Reads with the workers of a Dask cluster; each of them must see the folders of both dumps.

    Attributes:
        address: Of the scheduler, such as ``tcp://10.0.0.1:8786``; ``""`` starts a cluster of processes here.
        workers: Processes of a cluster that is started here; 0 is one a processor.
        declared: The user's metrics, which workers load for themselves.
    """

    address: str = ""
    workers: int = 0
    declared: Declared = field(default_factory=Declared)

    def run(self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: Terms) -> Iterator[tuple[Batch, list[Found]]]:
        """Yield every batch, as workers finish them, with what its readings gave.

        Raises:
            MissingExtraError: Dask is not installed.
            ExecutorError: No scheduler or worker is there, workers have another precflow, or they die of the work.
            DumpError: A worker does not see the dumps.
        """
        work = list(batches)
        if not work:
            return
        distributed = _distributed()
        task = _Task(_place(reference), _place(target), terms.compiled, terms.block, self.declared)
        with self._client(distributed) as client:
            futures = {client.submit(task, batch, pure=False): batch for batch in work}
            for future in distributed.as_completed(list(futures), loop=client.loop):
                try:
                    found = future.result()
                except distributed.KilledWorker as error:
                    told = f"workers died again and again of one batch: {error}"
                    raise ExecutorError(told, next_step="see the workers' logs; or executor=local") from error
                batch = futures.pop(future)
                future.release()
                yield batch, found

    @contextlib.contextmanager
    def _client(self, distributed: Any) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            where = self.address or stack.enter_context(self._own_cluster(distributed))
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
    def _own_cluster(self, distributed: Any) -> Iterator[Any]:
        """Start a cluster on this machine, without a dashboard, its files in a folder of its own."""
        with (
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


@dataclass(frozen=True)
class _Place:
    """Where a dump is, and which it is."""

    path: str
    content: str


@dataclass(frozen=True)
class _Task:
    """What a worker does with a batch."""

    reference: _Place
    target: _Place
    compiled: bool
    block: int
    declared: Declared
    version: str = __version__

    def __call__(self, batch: Batch) -> list[Found]:
        """Read a batch in a worker."""
        if self.version != __version__:
            raise ExecutorError(
                f"a worker has precflow {__version__}, not {self.version}", next_step="install the same everywhere"
            )
        sides = {"reference": _opened(self.reference), "target": _opened(self.target)}
        terms = Terms(self.compiled, self.block, _loaded(self.declared))
        return [read_all(reading, sides, terms) for reading in batch.readings]


def _place(dump: Dump) -> _Place:
    return _Place(str(dump.path.resolve()), dump.header.content)


@functools.lru_cache(maxsize=4)
def _opened(place: _Place) -> Dump:
    """Open a dump once a worker."""
    try:
        dump = Dump.open(Path(place.path), allow_unsealed=True)
    except DumpError as error:
        raise DumpError(f"a worker does not see it: {error.message}", next_step=_SHARED) from error
    if dump.header.content != place.content:
        raise DumpError(f"a worker sees another dump at {place.path}", next_step=_SHARED)
    return dump


_MAKERS: dict[str, Makers] = {}


def _loaded(declared: Declared) -> Makers:
    """Load the user's metrics once a worker."""
    key = repr(declared)
    if key not in _MAKERS:
        _MAKERS[key] = declared.load()
    return _MAKERS[key]


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise MissingExtraError("dask.distributed", "dask") from error

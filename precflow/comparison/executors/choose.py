"""What an executor is, and which one a recipe asks for: threads of this process, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from precflow.comparison.batches import Batch
from precflow.comparison.executors.cluster import Cluster
from precflow.comparison.executors.threads import Threads
from precflow.comparison.reading import PairResult, ReadOptions
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config import schema
from precflow.dumps.reader import Dump


class Executor(Protocol):
    """Reads batches of pairs, with threads or on other machines."""

    def run(
        self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: ReadOptions
    ) -> Iterator[tuple[Batch, list[PairResult]]]:
        """Yield each batch with the results of its readings, in their order; batches may come in any order.

        Raises:
            PrecflowError: They cannot be read there at all, for example because no worker answers.
        """


def choose(settings: schema.Executor, declared: DeclaredMetrics) -> Executor:
    """Return the executor of a run.

    Args:
        settings: As composed.
        declared: The user's metrics; other processes load them for themselves.
    """
    if settings.name == "dask":
        return Cluster(settings.address, settings.workers, declared)
    return Threads(settings.threads)

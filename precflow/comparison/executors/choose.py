"""Defines what an executor is, and chooses the one that a recipe asks for: threads of this process, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from precflow.comparison.batches import Batch
from precflow.comparison.executors.cluster import Cluster
from precflow.comparison.executors.threads import Threads
from precflow.comparison.reading import PairResult, ReadOptions
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config import schema
from precflow.dumps.protocol import Dump


class Executor(Protocol):
    """Reads batches of pairs of tensors, in threads or on other machines."""

    def run(
        self, batches: Iterable[Batch], reference: Dump, target: Dump, terms: ReadOptions
    ) -> Iterator[tuple[Batch, list[PairResult]]]:
        """Yield each batch with the results of its readings, which are in order; the batches may come in any order.

        A pair that cannot be read gives a result that says so, not an exception.

        Raises:
            PrecflowError: Nothing can be read there, for example because no worker answers.
        """


def choose(settings: schema.Executor, declared: DeclaredMetrics) -> Executor:
    """Return the executor that a recipe asks for.

    Args:
        settings: Section ``executor`` of the composed recipe.
        declared: The user's metrics, by name: workers on other machines import them themselves.
    """
    if settings.name == "dask":
        return Cluster(settings.address, settings.workers, declared)
    return Threads(settings.threads)

"""The executor that a recipe's machine asks for."""

from __future__ import annotations

from precflow.comparison.executors.cluster import Cluster
from precflow.comparison.executors.protocol import Executor
from precflow.comparison.executors.threads import Threads
from precflow.comparison.own import Declared
from precflow.config import schema


def choose(settings: schema.Executor, declared: Declared) -> Executor:
    """Return the executor of a run.

    Args:
        settings: As composed.
        declared: The user's metrics, which other processes load for themselves.
    """
    if settings.name == "dask":
        return Cluster(settings.address, settings.workers, declared)
    return Threads(settings.threads)

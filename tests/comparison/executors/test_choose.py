"""Which executor a recipe's section asks for."""

from precflow.comparison.executors import choose as choosing
from precflow.comparison.executors.cluster import Cluster
from precflow.comparison.executors.threads import Threads
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config import schema


def test_the_choice_of_a_recipe():
    assert choosing.choose(schema.Executor(threads=3), DeclaredMetrics()) == Threads(3)
    chosen = choosing.choose(schema.Executor("dask", "tcp://a:1", 2), DeclaredMetrics())
    assert chosen == Cluster("tcp://a:1", 2, DeclaredMetrics())

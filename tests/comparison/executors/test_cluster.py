"""Whoever reads gives the same: threads, processes of a real Dask cluster, and one whose worker dies midway."""

import importlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from precflow.agent.contract import FILLS
from precflow.comparison.batches import make_batches
from precflow.comparison.compare import compare
from precflow.comparison.executors import cluster as module
from precflow.comparison.executors.cluster import Cluster
from precflow.comparison.executors.threads import Threads
from precflow.comparison.reading import ReadOptions
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.errors import DumpError, ExecutorError, MissingExtraError


def test_without_dask_the_extra_is_named(sides, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError) as error:
        compare(*sides, executor=Cluster())
    assert error.value.next_step == "pip install 'precflow[dask]'"


def test_a_worker_checks_that_it_sees_the_same(sides, readings, tmp_path):
    task = module._Task(
        module._locate(sides[0]),
        module._locate(sides[1]),
        compiled=False,
        block=1 << 17,
        constants=FILLS,
        declared=DeclaredMetrics(),
    )
    batch = next(make_batches(readings, ReadOptions()))
    assert len(task(batch)) == 2
    with pytest.raises(ExecutorError, match="a worker has precflow"):
        replace(task, version="0.0.1")(batch)
    with pytest.raises(DumpError, match="a worker does not see it"):
        replace(task, target=module._DumpLocation(str(tmp_path / "nowhere"), ""))(batch)
    with pytest.raises(DumpError, match="a worker sees another dump"):
        replace(task, target=module._DumpLocation(str(sides[1].path), "another"))(batch)


dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs extra `dask`")


@dask
def test_a_scheduler_that_is_not_there(sides, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 1)
    with pytest.raises(ExecutorError, match=r"no Dask cluster answers at tcp://127\.0\.0\.1:9"):
        compare(*sides, executor=Cluster("tcp://127.0.0.1:9"))


@dask
@pytest.mark.slow
def test_a_cluster_of_processes_that_is_started_here_gives_the_same(sides, declared):
    before = dict(os.environ)
    by_threads = compare(*sides, executor=Threads(2), own=declared().load())
    by_processes = compare(*sides, executor=Cluster(workers=2, declared=declared()), own=declared().load())
    assert by_processes == by_threads
    assert sum(one.join == "unreadable" for one in by_threads) == 1
    assert any(one.metrics.get("flips") == 0 for one in by_threads)
    assert dict(os.environ) == before  # a side that is started later would compute with the threads of Dask's workers


@pytest.fixture
def cluster():
    """Return the address of a scheduler with two workers, each a process of its own, and all three of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    program = [sys.executable, "-m"]
    scheduler = [*program, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = [*program, "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    started = [subprocess.Popen(scheduler, **quiet)]
    started += [subprocess.Popen(worker, **quiet) for _ in range(2)]
    yield address, started
    for process in started:
        process.kill()
        process.wait()


@dask
@pytest.mark.slow
def test_a_worker_killed_midway_costs_its_tasks_a_second_time(sides, declared, cluster, tmp_path):
    address, (_, *workers) = cluster
    expected = compare(*sides, own=declared().load())
    executor = Cluster(address, declared=declared(wait=0.3))
    original, killed = Cluster.run, []

    class Watched(Cluster):
        def run(self, work, *rest):
            for batch, found in original(self, work, *rest):
                if not killed:
                    os.kill(workers[0].pid, signal.SIGKILL)
                    killed.append(workers[0].wait())
                yield batch, found

    watched = Watched(executor.address, declared=executor.declared)
    assert compare(*sides, executor=watched, own=declared().load(), kept=tmp_path / "kept") == expected
    assert killed == [-signal.SIGKILL]
    assert workers[1].poll() is None


@pytest.fixture
def struck(sides, declared, cluster, monkeypatch):
    """Return a function that compares while some of the cluster's processes are killed behind the first batch."""
    address, processes = cluster
    original = Cluster.run
    with importlib.import_module("distributed").Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)  # interpreters take their time to start
    monkeypatch.setattr(module, "_PATIENCE", 4)  # a client looks so long for a scheduler that has gone

    def compared(*numbers, kept):
        def run(self, *work):
            for batch, found in original(self, *work):
                for process in (processes[number] for number in numbers):
                    process.kill()
                    process.wait()
                monkeypatch.setattr(module, "_PATIENCE", 1)
                yield batch, found

        monkeypatch.setattr(Cluster, "run", run)
        own = declared(wait=0.3)
        return compare(*sides, executor=Cluster(address, declared=own), own=own.load(), kept=kept)

    return compared


@dask
@pytest.mark.slow
def test_without_any_worker_left_nobody_waits_for_good(struck, tmp_path):
    with pytest.raises(ExecutorError, match="no Dask worker is left") as error:
        struck(1, 2, kept=tmp_path / "kept")
    assert "goes on after the batches that are finished" in error.value.next_step
    assert list((tmp_path / "kept").iterdir())


@dask
@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_said_in_words(struck, cluster, tmp_path, capfd):
    with pytest.raises(ExecutorError, match=f"the Dask scheduler at {cluster[0]} is gone"):
        struck(0, kept=tmp_path / "kept")
    assert "Traceback" not in capfd.readouterr().err

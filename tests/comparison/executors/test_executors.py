"""Whoever reads gives the same: threads, processes of a real Dask cluster, and one whose worker dies midway."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from precflow.comparison import batches as batching
from precflow.comparison.batches import batches
from precflow.comparison.compare import compare
from precflow.comparison.executors import choose as choosing
from precflow.comparison.executors import cluster as module
from precflow.comparison.executors import threads
from precflow.comparison.executors.cluster import Cluster
from precflow.comparison.executors.threads import Threads
from precflow.comparison.own import Declared
from precflow.comparison.reading import Reading, Terms
from precflow.config import schema
from precflow.dumps.reader import Dump
from precflow.errors import DumpError, ExecutorError, MissingExtraError

METRICS = """
import time
import numpy as np

class Flips:
    def __init__(self, wait=0.0):
        self.flips, self.wait = 0, wait

    def update(self, reference, target):
        time.sleep(self.wait)
        self.flips += int(np.count_nonzero(reference * target < 0))

    def merge(self, other):
        self.flips += other.flips

    def value(self):
        return self.flips
"""


@pytest.fixture
def sides(build, monkeypatch):
    """Return two dumps of twelve calls in six batches, with NaN, zeros, integers and a damaged record in them."""
    monkeypatch.setattr(batching, "READINGS", 2)
    reference, target = build("reference"), build("target", side="target")
    for number in range(12):
        random = np.random.default_rng(number)
        values = random.standard_normal((5, 7000)).astype(np.float32)
        noise = 1 + 1e-4 * random.standard_normal(values.shape).astype(np.float32)
        if number % 3 == 0:
            values[0, ::77] = np.nan
            values[1] = 0
        kind = {5: np.int32, 7: np.float16}.get(number, np.float32)
        for dump, side in ((reference, values), (target, values * noise)):
            dump.call(f"m{number}", "linear", [(np.nan_to_num(side) if kind is np.int32 else side).astype(kind)])
    folders = [dump.write() for dump in (reference, target)]
    (shard,) = folders[1].glob("rank0/step0/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    return [Dump.open(folder) for folder in folders]


@pytest.fixture
def declared(tmp_path):
    (tmp_path / "cluster_metrics.py").write_text(METRICS)
    yield lambda **arguments: Declared(
        {"flips": {"_target_": "cluster_metrics.Flips", **arguments}}, ("cluster_metrics",), (str(tmp_path),)
    )
    sys.modules.pop("cluster_metrics", None)
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


def paired(sides):
    records = [[record for call in side.calls() for record in call.outputs] for side in sides]
    return [Reading(*both) for both in zip(*records, strict=True)]


def test_threads_yield_batches_in_order(sides):
    readings = paired(sides)
    work = list(batches(readings, {}))
    done = list(Threads(3).run(work, *sides, Terms()))
    assert [batch for batch, _ in done] == work
    assert [len(found) for _, found in done] == [len(batch.readings) for batch in work]
    assert [bool(one.problem) for _, found in done for one in found].count(True) == 1


def test_small_pairs_share_a_task_and_large_ones_are_cut(sides, monkeypatch):
    monkeypatch.setattr(threads, "_ENOUGH", 60_000)
    readings = paired(sides)
    opened = [
        threads._open(batch, number, *sides) for batch in batches(readings[:6], {}) for number in range(len(batch.readings))
    ]
    assert [len(task) for task in threads._tasks(opened)] == [2, 2, 2]
    monkeypatch.setattr("precflow.comparison.reading.PART", 1 << 14)
    assert sum(len(task) for task in threads._tasks(opened)) == 18


def test_who_leaves_early_leaves_no_thread_behind(sides):
    readings = paired(sides)
    run = Threads(2).run(list(batches(readings, {})), *sides, Terms())
    next(run)
    run.close()
    assert not [thread.name for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]


def test_the_choice_of_a_recipe():
    assert choosing.choose(schema.Executor(threads=3), Declared()) == Threads(3)
    chosen = choosing.choose(schema.Executor("dask", "tcp://a:1", 2), Declared())
    assert chosen == Cluster("tcp://a:1", 2, Declared())


def test_without_dask_the_extra_is_named(sides, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError) as error:
        compare(*sides, executor=Cluster())
    assert error.value.next_step == "pip install 'precflow[dask]'"


def test_a_worker_checks_that_it_sees_the_same(sides, tmp_path):
    task = module._Task(module._place(sides[0]), module._place(sides[1]), compiled=False, block=1 << 17, declared=Declared())
    readings = paired(sides)
    batch = next(batches(readings, {}))
    assert len(task(batch)) == 2
    with pytest.raises(ExecutorError, match="a worker has precflow"):
        replace(task, version="0.0.1")(batch)
    with pytest.raises(DumpError, match="a worker does not see it"):
        replace(task, target=module._Place(str(tmp_path / "nowhere"), ""))(batch)
    with pytest.raises(DumpError, match="a worker sees another dump"):
        replace(task, target=module._Place(str(sides[1].path), "another"))(batch)


dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs extra `dask`")


@dask
def test_a_scheduler_that_is_not_there(sides, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 1)
    with pytest.raises(ExecutorError, match=r"no Dask cluster answers at tcp://127\.0\.0\.1:9"):
        compare(*sides, executor=Cluster("tcp://127.0.0.1:9"))


@dask
@pytest.mark.slow
def test_a_cluster_of_processes_that_is_started_here_gives_the_same(sides, declared):
    by_threads = compare(*sides, executor=Threads(2), own=declared().load())
    by_processes = compare(*sides, executor=Cluster(workers=2, declared=declared()), own=declared().load())
    assert by_processes == by_threads
    assert sum(one.join == "unreadable" for one in by_threads) == 1
    assert any(one.metrics.get("flips") == 0 for one in by_threads)


@pytest.fixture
def cluster():
    """Return the address of a scheduler with two workers, each a process of its own, and the workers."""
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
    yield address, started[1:]
    for process in started:
        process.kill()
        process.wait()


@dask
@pytest.mark.slow
def test_a_worker_killed_midway_costs_its_tasks_a_second_time(sides, declared, cluster, tmp_path):
    address, workers = cluster
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

"""A shard that vanishes or is cut while it is read, by threads and by a Dask cluster: told in words, and never aligned."""

import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import dump_builder as builder
import numpy as np
import pytest

SHARD = "rank0/step0/tensors-0.safetensors"
LOCAL = ("executor=local",)
dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs extra `dask`")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="a bus error is explained on Linux")]


@pytest.fixture
def struck(precflow, tmp_path):
    """Return a function that compares two dumps of which one is struck in the first block that is read."""
    shutil.copy(Path(__file__).parent / "workloads" / "cutting.py", tmp_path)
    for side, factor in (("reference", 1), ("target", 1 + 2**-20)):
        dump = builder.DumpBuilder(tmp_path / side, side=side)
        for number in range(4):
            values = np.random.default_rng(number).standard_normal((64, 8192)).astype(np.float32)
            dump.call(f"layers.{number}", "linear", [values * np.float32(factor)])
        dump.write()
    sides = ("reference.dump=reference", "target.dump=target")
    metric = ("metrics.cutting._target_=cutting.Cutting", f"metrics.cutting.shard={tmp_path / 'target' / SHARD}")

    def run(how, *executor):
        words = ("+recipe=compare_dumps", *sides, *metric, f"metrics.cutting.how={how}", *executor)
        options = {"recipe": "compare_dumps", "cwd": tmp_path, "PRECFLOW_TRUST": "cutting", "OMP_NUM_THREADS": "1"}
        return precflow(*words, **options)

    return run


@pytest.fixture
def cluster():
    """Return the address of a scheduler with two workers that nobody starts again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, program = f"tcp://127.0.0.1:{port}", [sys.executable, "-m"]
    words = [[*program, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]]
    words += [[*program, "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]] * 2
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(each, **quiet) for each in words]
    yield address, started[1:]
    for process in started:
        process.kill()
        process.wait()


def test_a_shard_that_is_cut_under_the_reader_ends_the_run_in_words_and_the_next_one_names_it(struck):
    ended = struck("cut", *LOCAL)
    assert not ended.problems(2, "a file of a dump was cut short", "the same command")
    again = struck("cut", *LOCAL)
    assert not again.problems(3, f"{SHARD} is cut short", "INCONCLUSIVE")


def test_what_vanishes_when_it_is_mapped_is_still_read_and_missed_the_next_time(struck):
    assert struck("vanish", *LOCAL).code == 0  # its bytes were there, and are those that were recorded
    again = struck("vanish", *LOCAL, "metrics={}")
    assert not again.problems(3, f"{SHARD} cannot be read: the file is missing")


@dask
def test_a_shard_that_vanishes_from_a_cluster_is_unreadable(struck):
    ended = struck("vanish", "executor=dask", "executor.workers=2")
    assert not ended.problems(3, f"{SHARD} cannot be read: the file is missing", "INCONCLUSIVE")
    assert ended.result["verdict"]["counts"]["unreadable"] > 0


@dask
def test_a_worker_that_dies_of_a_cut_shard_costs_its_task_a_second_time_and_that_names_it(struck, cluster):
    address, workers = cluster
    ended = struck("cut", "executor=dask", f"executor.address={address}")
    assert not ended.problems(3, f"{SHARD} is cut short", "INCONCLUSIVE")
    assert sum(worker.poll() is None for worker in workers) == 1

"""kill -9 at any moment; the same command then gives the same report.

At one moment of a capture that escalates, and of one of tensors while it writes; at as many of both as PRECFLOW_KILL_MOMENTS
says.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recipes_of_tests import TRAINED

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("killed")]
MOMENTS = int(os.environ.get("PRECFLOW_KILL_MOMENTS", "1"))
# Measuring a noise floor is three more runs; one that is killed is in ``test_killed_agents.py``.
LIMITS = () if MOMENTS > 1 else ("tolerance.standards=[default]",)
WORDS = ("+recipe=minilm", *TRAINED, "reference.device=cpu", "target.device=emulated", "+emulate=layernorm_eps", *LIMITS)
CAPTURES = [("escalating", 10), ("tensors", 7)]  # and a seed: the first moment is half in, or a third


def environment():
    return {**{name: value for name, value in os.environ.items() if name != "CI"}, "PRECFLOW_TRUST": "trained"}


@pytest.fixture
def start(warm_server, tmp_path):
    """Return a function that starts the run in a folder."""
    warm_server.start()  # so that its time is not in that of the run

    def started(cwd, capture):
        shutil.copy(Path(__file__).parent / "workloads" / "trained.py", cwd)
        with (tmp_path / "err").open("wb") as err, (tmp_path / "out").open("wb") as out:
            words = (*WORDS, f"capture={capture}")
            return warm_server.popen(words, cwd=cwd, env=environment(), out=out.fileno(), err=err.fileno())

    return started


def report(cwd):
    """Return the run's result without what belongs to the moment: number, times, stages."""
    result = json.loads((cwd / "runs" / "minilm" / "public" / "result.json").read_text())
    for moment in ("run", "finished", "seconds", "stages"):
        result.pop(moment, None)
    return result


def finishes(started, tmp_path):
    assert started.wait(300) == 1, (tmp_path / "err").read_text()


@pytest.mark.parametrize(("capture", "seed"), CAPTURES if MOMENTS > 1 else CAPTURES[:1])
def test_killed_at_random_moments(start, tmp_path, capture, seed):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    began = time.monotonic()
    finishes(start(whole, capture), tmp_path)
    length = time.monotonic() - began
    chance = random.Random(seed)
    for moment in range(MOMENTS):
        cwd = killed / str(moment)
        cwd.mkdir(parents=True)
        process = start(cwd, capture)
        time.sleep(chance.uniform(0, length))
        with contextlib.suppress(ProcessLookupError):  # it was done
            os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) in {1, -signal.SIGKILL}
        finishes(start(cwd, capture), tmp_path)
        assert report(cwd) == report(whole)


def test_interpreters_killed_while_the_first_dump_is_written(start, tmp_path):
    """Judge and agent are interpreters of their own, as users start them."""
    shutil.copy(Path(__file__).parent / "workloads" / "trained.py", tmp_path)
    words = [sys.executable, "-m", "precflow", *WORDS, "capture=tensors"]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    making = tmp_path / "runs" / "minilm" / "store" / ".making"
    while not list(making.glob("dump.reference-*/rank0")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not list(making.parent.glob("dump.reference-*"))
    finishes(start(tmp_path, "tensors"), tmp_path)
    states = json.loads((tmp_path / "runs" / "minilm" / "run.json").read_text())["runs"][-1]["states"]
    assert (states["environment.reference"], states["dump.reference"]) == ("kept", "run")

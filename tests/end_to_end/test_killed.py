"""kill -9 at any moment; the same command then gives the same report."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("killed")]
WORDS = ("+recipe=sd_text_encoder", "workload.model.layers=1", "target.dtype=float32", "+emulate=layernorm_eps")
MOMENTS = int(os.environ.get("PRECFLOW_KILL_MOMENTS", "2"))


def start(cwd, capture):
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.Popen(
        [sys.executable, "-m", "precflow", *WORDS, f"capture={capture}"],
        cwd=cwd,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(cwd):
    """Return the run's result without what belongs to the moment: number, times, stages."""
    result = json.loads((cwd / "runs" / "sd_text_encoder" / "public" / "result.json").read_text())
    for moment in ("run", "finished", "seconds", "stages"):
        result.pop(moment, None)
    return result


@pytest.mark.parametrize("capture", ["tensors", "escalating"])
def test_killed_at_random_moments(tmp_path, capture):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    began = time.monotonic()
    process = start(whole, capture)
    _, err = process.communicate(timeout=300)
    length = time.monotonic() - began
    assert process.returncode == 1, err
    chance = random.Random(20261121)
    for moment in range(MOMENTS):
        cwd = killed / str(moment)
        cwd.mkdir(parents=True)
        process = start(cwd, capture)
        time.sleep(chance.uniform(0, length))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        again = start(cwd, capture)
        _, err = again.communicate(timeout=300)
        assert again.returncode == 1, err
        assert report(cwd) == report(whole)

"""kill -9 on a writer at any moment: finished steps are there and right, the rest is told, and the dump can be gone on with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOMENTS = int(os.environ.get("PRECFLOW_KILL_MOMENTS", "12"))


@pytest.mark.slow
def test_a_writer_killed_at_random_moments(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("killing.py")), str(tmp_path), str(MOMENTS), "20261121"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 + 5 * MOMENTS)
    assert done.returncode == 0, done.stderr
    moments = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(moments) == MOMENTS
    assert [moment for moment in moments if moment["problems"] or not moment["same"]] == []
    assert sum(moment["readable"] for moment in moments) > 0
    assert len({moment["finished"] for moment in moments}) > 1

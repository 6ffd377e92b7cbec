"""kill -9 on a writer at any moment: finished steps are there and right, the rest is told, and the dump can be gone on with."""

import json
import os
from pathlib import Path

import pytest

MOMENTS = int(os.environ.get("PRECFLOW_KILL_MOMENTS", "12"))


@pytest.mark.slow
def test_a_writer_killed_at_random_moments(tmp_path, warm_server):
    words = [Path(__file__).with_name("killing.py"), tmp_path, MOMENTS, "20261121"]
    code, out, err = warm_server.run(words, cwd=tmp_path, env=dict(os.environ), timeout=60 + 5 * MOMENTS, module="")
    assert code == 0, err
    moments = [json.loads(line) for line in out.splitlines()]
    assert len(moments) == MOMENTS
    assert [moment for moment in moments if moment["problems"] or not moment["same"]] == []
    assert sum(moment["readable"] for moment in moments) > 0
    assert len({moment["finished"] for moment in moments}) > 1

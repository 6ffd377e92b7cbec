"""kill -9 at any moment of a comparison: the same command gives the same bytes, and reads only what was left."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

MOMENTS = int(os.environ.get("PRECFLOW_KILL_MOMENTS", "5"))


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killed_at_random_moments(tmp_path):
    spec = importlib.util.spec_from_file_location("killing", Path(__file__).parent / "killing.py")
    killing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(killing)
    rows = killing.kill(MOMENTS, tmp_path)
    assert len(rows) == MOMENTS
    assert any(row["kept"] > 0 for row in rows)

"""Dumps of a small model by msprobe and by precflow, made once."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "foreign_runs.py"


@pytest.fixture(scope="session")
def foreign_runs(tmp_path_factory):
    """Return the folder of all dumps of ``support/foreign_runs.py``."""
    folder = tmp_path_factory.mktemp("foreign")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, folder], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder

"""Runs the other tests of this folder where installing the device harms nobody: in one subprocess."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.slow
def test_everything_in_this_folder_passes_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(HERE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"

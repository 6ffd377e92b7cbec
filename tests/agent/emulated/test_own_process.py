"""Runs the other tests of this folder where installing the device harms nobody: in one process, a fork of the warm one."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.slow
def test_everything_in_this_folder_passes_in_a_process_of_its_own(warm_server):
    words = ["-q", "-p", "no:xdist", str(HERE)]
    code, out, err = warm_server.run(words, cwd=ROOT, env=dict(os.environ), timeout=900, module="pytest")
    assert code == 0, f"python -m pytest {' '.join(words)}\n{out[-8000:]}\n{err[-2000:]}"

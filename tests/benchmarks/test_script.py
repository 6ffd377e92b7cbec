"""The benchmark of watched scripts runs, and leaves no hook behind."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "script.py"


def test_it_measures_one_ratio():
    ended = subprocess.run([sys.executable, PROGRAM, "--json", "--rounds", "1", "--steps", "4"], capture_output=True, text=True)
    assert ended.returncode in {0, 1}, ended.stderr
    measured = json.loads(ended.stdout)
    assert 0.5 < measured["ratio"] < 5
    assert measured["plain_milliseconds"] > 0

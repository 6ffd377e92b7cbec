"""The benchmark of watched scripts runs, and leaves no hook behind."""

import json
import os
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "script.py"


def test_it_measures_one_ratio(warm_server, tmp_path):
    words = (PROGRAM, "--json", "--rounds", "1", "--steps", "4")
    code, out, err = warm_server.run(words, cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
    assert code in {0, 1}, err
    measured = json.loads(out)
    assert 0.5 < measured["ratio"] < 5
    assert measured["plain_milliseconds"] > 0

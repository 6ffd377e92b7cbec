"""The benchmark of tables: its records are read and written as those of a run, and its page has a row for each size."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_step_is_measured():
    place = importlib.util.spec_from_file_location("benchmark_of_tables", FOLDER / "tables.py")
    benchmark = importlib.util.module_from_spec(place)
    place.loader.exec_module(benchmark)
    assert "benchmark_of_tables" not in sys.modules
    row = benchmark.measure(600)  # more than one training step
    assert all(row[name]["processor"] >= 0 for name in ("read", "frame", "group", "csv", "parquet", "tensorboard"))
    assert 0 < row["table"] < 1 < row["frame"]["megabytes"]
    head, _, line = benchmark.table([row]).strip().splitlines()
    assert head.count("|") == line.count("|")

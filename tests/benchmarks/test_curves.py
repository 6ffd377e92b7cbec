"""The benchmark of logs, and that reading stays near the plain reading of lines: a pattern that backtracks shows here."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("benchmark_of_curves", Path(__file__).parents[2] / "benchmarks" / "curves.py")
benchmark = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(benchmark)


def test_the_table_has_every_kind_with_its_seconds(capsys):
    benchmark.main(["--lines", "20000"])
    said = capsys.readouterr().out
    assert said.startswith("20000 steps")
    assert [line.split("  ")[1] for line in said.splitlines()[1:]] == [
        "plain reading of lines",
        "text",
        "lines",
        "json",
        "csv",
        "joining and measuring",
    ]
    assert all(float(line.split(" s ")[0].split()[-1]) > 0 for line in said.splitlines()[1:])

"""The benchmark of comparison compares what it says: real dumps, by the program that users start."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from precflow.comparison.compare import compare
from precflow.dumps.formats import read_dump

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def comparing(monkeypatch):
    """Return a function that loads one module of the benchmark."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, FOLDER / "comparing" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_dumps_are_whole_and_off_by_what_they_should_be(tmp_path, comparing):
    comparing("dumps").write_ours(tmp_path, 0.005)
    sides = [read_dump(tmp_path / name) for name in ("reference", "target")]
    assert [problem for side in sides for problem in side.verify()] == []
    measures = compare(*sides)
    assert sum(measure.counts["elements"] for measure in measures) * 8 >= 0.005 * 1e9
    assert all(0 < measure.metrics["relative_l2"] < 1e-5 for measure in measures)


@pytest.mark.slow
@pytest.mark.xdist_group("compiled")  # it compares by the compiled pass
def test_our_run_writes_the_table_with_every_record_judged(tmp_path, comparing):
    comparing("dumps").write_records(tmp_path, 20)
    table = tmp_path / "table.csv"
    done = subprocess.run(
        [sys.executable, FOLDER / "comparing" / "ours.py", tmp_path, table], check=True, capture_output=True, text=True
    )
    said = json.loads(done.stdout)
    assert (said["measures"], said["verdict"]) == (20, "aligned")
    lines = table.read_text().splitlines()
    assert len(lines) == 21
    assert lines[0].startswith("record,join,status,cosine_similarity")
    assert all(",paired,pass," in line for line in lines[1:])


def test_all_passes_of_the_race_read_the_same_pair(comparing):
    kernels, pairs = comparing("kernels"), comparing("pairs")
    pair = [side.reshape(-1, kernels.ROW) for side in pairs.pair(1 << 16)]
    times = kernels.race({"read": lambda: kernels.read_only(*pair), "numpy": lambda: kernels.fused(*pair, compiled=False)}, 2)
    assert {name: len(values) for name, values in times.items()} == {"read": 2, "numpy": 2}
    naive = kernels.naive(*pair)
    assert len(naive) == 21
    assert naive[0] == pytest.approx(1.0, abs=1e-9)


def test_rates_leave_the_start_of_the_process_out(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("compare", FOLDER / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [{"gigabytes": 1.0, "ours": 1.0}, {"gigabytes": 2.0, "ours": 1.25}, {"gigabytes": 16.0, "ours": 4.75}]
    assert [row["GB/s beyond the row before"] for row in module.with_rates(rows, 0.7)] == [None, 4.0, 4.0]
    assert [row["GB/s beyond the row before"] for row in module.with_rates(rows[:1], 0.75)] == [4.0]

"""The benchmark of reading many records: what it reads is a dump, and what it counts is this dump's."""

import importlib.util
import sys
from pathlib import Path

import pytest

from precflow.dumps.formats import read_dump

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """Return the benchmark as a module."""
    place = importlib.util.spec_from_file_location("benchmark_of_records", FOLDER / "records.py")
    module = importlib.util.module_from_spec(place)
    sys.path.insert(0, str(FOLDER))
    try:
        place.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def test_what_it_reads_is_a_whole_dump(benchmark, tmp_path):
    benchmark.write(tmp_path, 400)
    dump = read_dump(tmp_path)
    records = [record for call in dump.calls() for record in (*call.inputs, *call.outputs)]
    assert len(records) == 400
    assert dump.damage == ()
    assert sum(record.stored for record in records) == 200
    assert dump.view(next(record for record in records if record.stored)).shape == (1,)


def test_every_part_takes_time_and_memory_grows_with_the_records(benchmark):
    few, many = benchmark.measure(400), benchmark.measure(20_000)
    assert all(few[part] > 0 for part in ("read", "index", "texts", "processor"))
    assert many["megabytes"] > 5 * few["megabytes"] > 0
    assert benchmark.table([few, many]).count("\n") == 4
    assert "| 20,000 |" in benchmark.table([many])

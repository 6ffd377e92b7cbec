"""The benchmark of transfers compares like with like: the same bytes, there and back, in both ways."""

import importlib.util
from pathlib import Path

import fsspec
import pytest

from precflow.run.remote.filesystem import Address

FILE = Path(__file__).parents[2] / "benchmarks" / "transfer.py"


@pytest.fixture(scope="module")
def benchmark():
    """Return the benchmark as a module."""
    place = importlib.util.spec_from_file_location("benchmark_of_transfers", FILE)
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 5])
def test_both_ways_are_measured_and_nothing_is_left(benchmark, monkeypatch, count):
    filesystem = fsspec.filesystem("memory")
    monkeypatch.setattr(type(filesystem), "store", {})
    monkeypatch.setattr(type(filesystem), "pseudo_dirs", [""])
    row = benchmark.measure(Address("memory://benchmark"), 1, count, rounds=2)
    assert row["files"] == count
    assert row["upload_ratio"] == pytest.approx(row["upload"] / row["client_upload"])
    assert min(row.values()) > 0
    assert filesystem.find("/benchmark") == []

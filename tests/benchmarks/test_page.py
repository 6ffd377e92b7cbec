"""The benchmark of the page, and what it is about: its size, and that nothing on it waits for each record."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """Return the benchmark as a module."""
    place = importlib.util.spec_from_file_location("benchmark_of_pages", FOLDER / "page.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_five_times_the_records_take_hardly_longer(benchmark):
    few, many = (benchmark.measure(records) for records in (4_000, 20_000))
    assert few["on_page"] == few["records"]
    assert many["on_page"] == many["records"]
    assert many["megabytes"] < 0.8
    assert many["opened"] < 3 * few["opened"]
    assert benchmark.table([few, many]).count("\n") == 4

"""The benchmark of the stages behind a comparison, and what it is about: their work grows as the records do, not faster."""

import cProfile
import importlib.util
import pstats
import sys
from pathlib import Path

import pytest

from precflow.config.composition import compose
from precflow.run.jobs import make_job
from precflow.stages.artifacts import cache_reads
from precflow.stages.compare import read_measures
from precflow.stages.judge import read_judged
from precflow.stages.localize import read_region
from precflow.stages.registry import instances

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """Return the benchmark as a module."""
    place = importlib.util.spec_from_file_location("benchmark_of_reports", FOLDER / "report.py")
    module = importlib.util.module_from_spec(place)
    sys.path.insert(0, str(FOLDER))
    try:
        place.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def calls_of_stages(folder):
    """Run the stages over two dumps; return how many functions those behind the comparison call, and the stages' folders."""
    sides = [f"{side}.dump={folder / side}" for side in ("reference", "target")]
    job = make_job(compose(["+recipe=compare_dumps", *sides]), command="precflow")
    made, called = {}, 0
    with cache_reads():
        for stage in instances(job.config):
            made[stage.name] = folder / "made" / stage.name
            made[stage.name].mkdir(parents=True)
            needed = {name: made[name] for name in stage.needs}
            if stage.name not in {"judge", "localize", "advise", "report"}:
                stage.make(job, made[stage.name], needed)
                continue
            profile = cProfile.Profile()
            profile.runcall(stage.make, job, made[stage.name], needed)
            called += pstats.Stats(profile).total_calls
    return called, made


def test_the_dumps_are_those_of_a_fault_with_everything_behind_it(benchmark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    benchmark.write(tmp_path, 400, layers=2)
    _, made = calls_of_stages(tmp_path)
    assert all(measure.join == "paired" for measure in read_measures(made["compare"]))
    statuses = [one.status for one in read_judged(made["judge"])]
    assert {"pass", "fail", "not_judged"} == set(statuses)
    assert statuses.count("fail") > 100
    region = read_region(made["localize"])
    assert list(region.roles.values()).count("inherits") > 10 * len(region.suspects) > 0


@pytest.mark.slow
@pytest.mark.parametrize("one_step", [True, False])
def test_work_grows_as_records_do(benchmark, tmp_path, monkeypatch, one_step):
    """Each record adds as many calls as those before it. Differences, as what does not depend on records is in each number."""
    monkeypatch.chdir(tmp_path)
    called = {}
    for number, records in enumerate((50, 50, 150, 450)):  # the first one imports modules and compiles templates besides
        folder = tmp_path / str(number)
        benchmark.write(folder, records, layers=records // 50 if one_step else 2)
        called[records], _ = calls_of_stages(folder)
    assert (called[450] - called[150]) / 300 < 1.1 * (called[150] - called[50]) / 100

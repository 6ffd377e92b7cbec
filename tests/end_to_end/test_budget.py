"""A budget: told beforehand from a dump that holds content ids alone, and enforced while a dump is written."""

import json
import shutil
from pathlib import Path

import pytest
from recipes_of_tests import TRAINED

from precflow.dumps.formats import read_dump

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("budget")]
ALONE = "sides=[reference]"
WORKLOAD = ("workload.model._target_=hostile.build", "workload.inputs._target_=hostile.inputs", "reference.device=cpu")


def planned(precflow, cwd):
    words = ("plan", "+recipe=minilm", *WORKLOAD, "target.device=cpu", ALONE, "--json")
    ended = precflow(*words, cwd=cwd, PRECFLOW_TRUST="hostile")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def size_of(plan):
    (row,) = [row for row in plan["stages"] if row["stage"] == "dump" and row["side"] == "reference"]
    return row["bytes"]


@pytest.fixture
def cwd(hostile, tmp_path):
    """Return a working directory without a run."""
    (tmp_path / "hostile.py").write_text((hostile.cwd / "hostile.py").read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def test_what_a_plan_cannot_estimate_the_command_that_it_prints_makes_known(precflow, hostile, cwd):
    plan = planned(precflow, cwd)
    assert size_of(plan) is None
    assert any(note.startswith("not estimated: what the dump of the reference takes") for note in plan["notes"])
    told = hostile("capture.detail=digest", "capture.rules=[]", "stages=[environment,dump]", ALONE, cwd=cwd)
    assert told.code == 0, told.err
    expected = size_of(planned(precflow, cwd))
    made = hostile("capture.detail=tensors", ALONE, cwd=cwd)
    assert made.code == 0, made.err
    dump = max(made.folder.glob("store/dump.reference-*"), key=size_on_disk)
    assert 0.5 < expected / size_on_disk(dump) < 2  # of so small a model the lines are most, whose length is guessed


def size_on_disk(folder):
    return sum(path.stat().st_size for path in folder.rglob("step*/*"))


def test_a_dump_stops_at_its_budget_and_stays_readable(hostile, cwd):
    ended = hostile("capture.step=[0,1]", "capture.budget=11kB", ALONE, cwd=cwd)
    assert not ended.problems(2, "would exceed its budget: 11.0 kB allowed", "more needed", "raise capture.budget")
    (failed,) = ended.folder.glob("store/dump.reference-*.failed")
    assert size_on_disk(failed / "rank0") <= 11_000 + 2000  # and what seals and indices take
    dump = read_dump(failed, allow_unsealed=True)
    assert {call.step for call in dump.calls()} == {0}
    assert not dump.sealed
    again = hostile("capture.step=[0,1]", "capture.budget=1GB", ALONE, cwd=cwd)
    assert again.code == 0, again.err


COMMON = ("reference.device=cpu", "determinism.repeat=false", "capture.budget=10GB", "stages=[environment,dump]", ALONE)
CASES = {"sd_text_encoder": ("workload.model.layers=1",), "minilm": TRAINED}
FACTOR = 1.3  # docs/capture.md states it


@pytest.mark.parametrize("recipe", CASES)
def test_the_first_plan_tells_what_each_detail_takes(precflow, tmp_path, recipe):
    shutil.copy(Path(__file__).parent / "workloads" / "trained.py", tmp_path)
    words = (f"+recipe={recipe}", *CASES[recipe], *COMMON)
    options = {"cwd": tmp_path, "recipe": recipe, "PRECFLOW_TRUST": "trained", "OMP_NUM_THREADS": "1"}
    details = ("statistics", "sketch", "tensors")
    plans = [precflow("plan", *words, f"capture.detail={detail}", "--json", **options) for detail in details]
    expected = [size_of(json.loads(plan.out)) for plan in plans]
    assert ["without values" in plan.err for plan in plans] == [True, False, False]  # the first one is kept
    for detail, size in zip(details, expected, strict=True):
        made = precflow(*words, f"capture.detail={detail}", **options)
        assert made.code == 0, made.err
        dump = max(made.folder.glob("store/dump.reference-*"), key=lambda folder: folder.stat().st_mtime)
        assert 1 / FACTOR < size / size_on_disk(dump) < FACTOR, (detail, size, size_on_disk(dump))

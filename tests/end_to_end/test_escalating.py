"""Escalating capture with real agents: sketches of everything, then the tensors of the region, on one machine and on two."""

import json
from pathlib import Path

import numpy as np
import pytest

from precflow.dumps.formats import read_dump

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("escalating")]
RECIPE = ("+recipe=sd_text_encoder", "capture=escalating", "target.dtype=float32")
FAULT = ("+emulate=layernorm_eps",)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return one working directory: the sketches of the reference are made once."""
    return tmp_path_factory.mktemp("escalating")


@pytest.fixture(scope="module")
def small(small_encoder):
    """Return the recipe over a narrow encoder of two layers."""
    return (*RECIPE, *small_encoder(layers=2))


@pytest.fixture(scope="module")
def run(precflow, small, place):
    """Return a function that runs the small recipe there."""
    return lambda *words, cwd=place: precflow(*small, *words, cwd=cwd, OMP_NUM_THREADS="1")


def last_run(folder):
    return json.loads((folder / "run.json").read_text())["runs"][-1]


def states(folder):
    return last_run(folder)["states"]


def stored(dump):
    return {record.text: record for call in dump.calls() for record in (*call.inputs, *call.outputs) if record.stored}


def made(folder, name):
    """Return the folder of an instance of the last run."""
    return folder / "store" / f"{name}-{last_run(folder)['instances'][name]}"


def test_a_fault_is_named_as_from_tensors_of_everything(run, precflow, small, place):
    ended = run(*FAULT)
    assert ended.code == 1, ended.err
    found = ended.result
    assert found["region"]["start"].endswith("layers.0.layer_norm1 / layer_norm")
    assert "the second pass has run" in found["region"]["notes"][0]
    everything = precflow(*small, *FAULT, "capture=tensors", cwd=place, OMP_NUM_THREADS="1")
    assert everything.code == 1
    assert everything.result["region"]["start"] == found["region"]["start"]
    assert everything.result["findings"][0]["rule"] == found["findings"][0]["rule"] == "PF214"
    assert everything.result["verdict"]["counts"].get("undecided", 0) == 0


def test_the_second_pass_keeps_inputs_and_outputs_of_the_same_calls_on_both_sides(run):
    folder = run(*FAULT).folder
    sides = [stored(read_dump(made(folder, f"dump.{side}@2"))) for side in ("reference", "target")]
    assert set(sides[0]) == set(sides[1])
    suspect = "encoder.layers.0.layer_norm1/layer_norm.0/forward"
    assert {f"{suspect}.input.0", f"{suspect}.output.0"} <= set(sides[0])
    first = read_dump(made(folder, "dump.target"))
    whole = {record.text for call in first.calls() for record in (*call.inputs, *call.outputs)}
    assert len(sides[1]) < len(whole)
    assert max(int(np.prod(record.shape)) for record in stored(first).values()) <= 1024


def test_a_clean_run_has_one_pass(run):
    ended = run()
    assert ended.code == 0, ended.err
    assert "no second pass" in ended.result["region"]["notes"][0]
    assert not [name for name in states(ended.folder) if name.endswith("@2")]


def test_a_limit_that_changes_nothing_about_the_region_runs_no_side_again(run):
    run(*FAULT)
    ended = run(*FAULT, "tolerance.cosine_similarity=0.5")
    assert ended.code == 1
    dumps = {name: state for name, state in states(ended.folder).items() if name.startswith("dump.")}
    assert dumps == dict.fromkeys(("dump.reference", "dump.target", "dump.reference@2", "dump.target@2"), "kept")
    assert states(ended.folder)["judge"] == "run"


def test_two_machines_take_turns(precflow, small, tmp_path):
    here = {side: tmp_path / side for side in ("reference", "target")}
    for folder in here.values():
        folder.mkdir()

    def turn(side):
        words = (*small, *FAULT, f"sides=[{side}]", f"store={tmp_path / 'store'}")
        return precflow(*words, cwd=here[side], OMP_NUM_THREADS="1")

    first = turn("reference")
    assert first.code == 0
    assert "sides=[target]" in first.err
    second = turn("target")
    assert second.code == 1, second.err
    assert "sides=[reference]" in second.err
    scope = second.err.split("scope of the second pass")[1].split()[0]
    assert json.loads(Path(scope).read_text(encoding="utf-8"))["rules"]
    third = turn("reference")
    assert third.code == 1, third.err
    assert "the second pass has run" in third.result["region"]["notes"][0]
    assert third.result["findings"][0]["rule"] == "PF214"


def test_a_plan_tells_the_size_of_a_dump_within_a_third(run, precflow, small, place):
    run()
    plan = precflow("plan", *small, "capture=tensors", "determinism.algorithms=native", "--json", cwd=place)
    told = {row["side"]: row["bytes"] for row in json.loads(plan.out)["stages"] if row["stage"] == "dump"}
    tensors = precflow(*small, "capture=tensors", cwd=place, OMP_NUM_THREADS="1")
    assert tensors.code == 0
    for side in ("reference", "target"):
        size = sum(path.stat().st_size for path in made(tensors.folder, f"dump.{side}").glob("rank*/step*/*"))
        assert told[side] == pytest.approx(size, rel=0.33), side

"""Stage ``whatif.suspects_alone``: what the agent is asked, and what advice and report read of it. The agent is played."""

import json
from dataclasses import replace

import pytest

from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.introduced import IntroducedError
from precflow.stages import alone
from precflow.stages.artifacts import read_value, write_lines, write_value
from precflow.stages.whatif import read_outcomes

STAGES = "stages=[dump,determinism,compare,judge,localize,advise,report]"  # `introduced` would start an agent
RECORD = "fc2/linear.0/forward.output.0"


@pytest.fixture
def run_alone(pair, made, job_of, tmp_path, monkeypatch):
    """Return a function that runs the stage over two dumps in whose second one ``fc2`` is wrong: its result and the needs."""
    folders = made(pair(factor=1.01), STAGES, until="advise")
    asked = []

    def agent(job, side, request, folder):
        call = json.loads((folder / "calls.jsonl").read_text())["call"]
        asked.append((side, request["action"], call))
        numbers = {"dtype": "float32", "elements": 64, "eta": 3e-8, "unit": 2.0**-24}
        line = {"call": call, "index": "0", "replayed": True, "why": "", "same_bits": False}
        (folder / "replayed.jsonl").write_text(json.dumps({**line, "runs": {"reference": numbers, "target": numbers}}) + "\n")

    monkeypatch.setattr(alone, "ask_agent", agent)

    def run(*suspects):
        region = replace(read_value(folders["localize"] / "region.json", Region), suspects=suspects)
        for name in ("introduced", "introduced.evaluation", "whatif.suspects_alone"):
            folders[name] = tmp_path / name
            folders[name].mkdir()
        for name in ("judged.jsonl", "verdict.json"):
            (folders["introduced"] / name).write_bytes((folders["judge"] / name).read_bytes())
        write_value(folders["introduced"] / "region.json", region)
        call = "fc2/linear.0/api.forward@0.0"
        error = IntroducedError(call, "0", "matmul", 1e5, 1e4, "rho", is_fault=True, eta_reference=3e-8, eta_target=1e-2)
        write_lines(folders["introduced"] / "introduced.jsonl", [error])
        sides = {name: {"dtype": "float32", "elements": 64, "eta": 3e-8, "unit": 2.0**-24} for name in ("reference", "target")}
        evaluated = {"call": call, "index": "0", "kind": "matmul", "evaluated": True, "why": "", "sides": sides}
        (folders["introduced.evaluation"] / "evaluated.jsonl").write_text(json.dumps(evaluated) + "\n")
        job = job_of(pair("again"))
        result = alone.STAGE.make(job, folders["whatif.suspects_alone"], folders)
        return result, folders

    run.asked = asked
    return run


def test_the_target_runs_the_suspects_alone_and_nothing_else(run_alone):
    result, folders = run_alone(
        Suspect(record=RECORD, name="fc2 / linear", module="fc2", operator="linear", order=1, ratio=9.0, why="w")
    )
    assert run_alone.asked == [("target", "replay", "fc2/linear.0/api.forward@0.0")]
    (run,) = alone.read_alone(folders)
    assert (run.record, run.in_run, run.alone, run.is_fault) == (RECORD, 1e-2, 3e-8, False)
    (outcome,) = read_outcomes(folders)
    assert (outcome.name, outcome.outcome) == ("suspects_alone", "confirmed")
    assert result.note.startswith("confirmed: with fc2 / linear run alone")
    assert {path.name for path in folders["whatif.suspects_alone"].iterdir()} == {"alone.jsonl", "outcomes.jsonl"}


def test_without_a_suspect_no_agent_is_started(run_alone):
    result, folders = run_alone()
    assert run_alone.asked == []
    assert alone.read_alone(folders) == []
    assert "no suspect introduces an error of its own" in result.note


def test_a_run_that_does_not_ask_for_it_has_none(tmp_path):
    assert alone.read_alone({"advise": tmp_path}) == []

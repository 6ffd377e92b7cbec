"""The system kills an agent (memory is short): the stage that asked it fails, keeps nothing, and is made by the next run.

Each stage that asks an agent is struck at one of three moments: before the agent has said anything, between two words, and when
its answer lies there and it has not ended yet. The moments take turns, so that each strikes several stages; one stage, and all
where PRECFLOW_KILL_MOMENTS asks for more, is struck at all three.
"""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("killed")]
PHASES = ("first", "between", "last")
ALL = int(os.environ.get("PRECFLOW_KILL_MOMENTS", "1")) > 1
NORMED = (
    "workload.model._target_=normed.build",
    "workload.inputs._target_=normed.inputs",
    "reference.device=cpu",
    "target.device=emulated",
    "+emulate=layernorm_eps",
)
SCRIPT = ("+recipe=script", "workload.script=train.py", "reference.device=cpu", "target.device=cpu", "workload.stop_early=true")


@pytest.fixture
def killed(precflow, tmp_path):
    """Return a function that runs a command, killing the agents of its stages, and then to its end."""
    moments = itertools.cycle(PHASES)

    def run(workload, recipe, words, stages):
        shutil.copy(Path(__file__).parent / "workloads" / workload, tmp_path)
        options = {"cwd": tmp_path, "recipe": recipe, "PRECFLOW_TRUST": "normed"}
        store = tmp_path / "runs" / recipe / "store"
        for stage, action in stages:
            for phase in PHASES if ALL or stage == "dump.reference" else [next(moments)]:
                ended = precflow(*words, **options, KILLED_AT=f"{stage}:{action}:{phase}")
                assert ended.problems(2, "was killed by SIGKILL", f"in stage {stage} of") == [], (stage, action, phase)
                assert not [path for path in store.glob(f"{stage}-*") if path.suffix != ".failed"]
                report = tmp_path / "runs" / recipe / "report.html"
                assert not report.exists() or "was killed by SIGKILL" in report.read_text(encoding="utf-8")
        return precflow(*words, **options)

    return run


def test_a_model_that_escalates(killed):
    stages = {
        "environment.reference": "environment",
        "dump.reference": "dump",
        "dump.target@2": "dump",
        "introduced.evaluation": "evaluate",
        "introduced": "evaluate",
        "whatif.suspects_alone": "replay",
    }
    words = ("+recipe=minilm", *NORMED, "capture=escalating", "whatif=[suspects_alone]")
    ended = killed("normed.py", "minilm", words, stages.items())
    assert ended.code == 1, ended.err
    assert ended.result["region"]["start"] == "0.norm / layer_norm"
    assert (ended.result["findings"][0]["rule"], ended.result["findings"][0]["certainty"]) == ("PF214", "certain")


def test_a_noise_floor(killed):
    devices = ("reference.device=cpu", "target.device=cpu")  # of one kind, so that it is not measured beside the target's dump
    words = ("+recipe=minilm", *NORMED[:2], *devices, "tolerance.standards=[calibrated]")
    ended = killed("normed.py", "minilm", words, [("noise.reference", "noise")])
    assert ended.code == 0, ended.err


def test_a_golden_run_and_the_parts_of_a_model(killed):
    words = ("+recipe=minilm", *NORMED, "tolerance.standards=[default]", "golden.dtype=float64", "workload.parts=['0']")
    ended = killed("normed.py", "minilm", words, [("golden", "dump"), ("chain", "dump")])
    assert ended.code == 1, ended.err
    assert ended.result["golden"]
    assert [part["state"] for part in ended.result["parts"]] == ["to blame"]


def test_a_table_of_operators(killed):
    words = ("+recipe=[minilm,operator_check]", *NORMED)
    ended = killed("normed.py", "minilm+operator_check", words, [("operators", "replay"), ("operators", "unary")])
    assert ended.code == 1, ended.err
    assert ended.result["operators"]


def test_a_script(killed):
    words = (*SCRIPT, "determinism.repeat=true", "determinism.observer=checked", "tolerance.standards=[calibrated]")
    stages = [("dump.reference", "dump"), ("dump.reference", "plain"), ("noise.reference", "noise")]
    ended = killed("train.py", "script", words, stages)
    assert ended.code == 0, ended.err


def test_a_what_if_did_not_run_and_runs_the_next_time(precflow, tmp_path):
    shutil.copy(Path(__file__).parent / "workloads" / "normed.py", tmp_path)
    options = {"cwd": tmp_path, "recipe": "minilm", "PRECFLOW_TRUST": "normed"}
    words = ("+recipe=minilm", *NORMED, "whatif=[suspects_in_float64]")
    for phase in PHASES:
        ended = precflow(*words, **options, KILLED_AT=f"whatif.suspects_in_float64:whatif:{phase}")
        assert ended.code == 1, ended.err
        (outcome,) = ended.result["whatifs"]
        assert outcome["outcome"] == "did not run"
        assert "was killed by SIGKILL" in outcome["problem"]
    ended = precflow(*words, **options)
    assert [one["outcome"] for one in ended.result["whatifs"]] == ["refuted"]
    states = json.loads((ended.folder / "run.json").read_text())["runs"][-1]["states"]
    assert (states["introduced"], states["whatif.suspects_in_float64"]) == ("kept", "run")

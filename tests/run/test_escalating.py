"""Two passes over both sides, with an agent that writes dumps by hand: what is run, kept, skipped and put off."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from precflow.agent import request as requests
from precflow.agent.contract import DETAIL_FACTS
from precflow.config.composition import compose
from precflow.diagnosis.advice import rules
from precflow.errors import SideError, StoreError
from precflow.run.plan import build_plan, render_plan
from precflow.run.runner import run
from precflow.stages import job

LAYERS = 5
SHAPE = (4, 16)


class Agents:
    """Both sides: a chain of layers, of which one is wrong on the target.

    Attributes:
        ran: ``side detail`` of every dump that was asked for.
        factor: What the third layer's output is multiplied by on the target.
        drift: Added to everything by a side's second pass.
        fails: Side whose second pass fails.
    """

    def __init__(self, builder):
        self.builder = builder
        self.ran = []
        self.factor = 1.01
        self.drift = {}
        self.fails = ""

    def __call__(self, request, *, folder, **_):
        asked = requests.parse(json.loads(json.dumps(request)))
        if asked.action == "environment":
            facts = {
                "device": {"kind": "cpu", "description": "CPU"},
                "torch": {"version": "2.1.0"},
                "python": {"version": "3.11"},
            }
            return (folder / "facts.json").write_text(json.dumps(facts))
        self.ran.append(f"{asked.side} {asked.capture.detail}")
        if asked.side == self.fails and asked.capture.detail == "tensors":
            raise SideError("the agent was killed")
        return self._dump(asked, folder)

    def _dump(self, asked, folder):
        again, scope = asked.capture.detail == "tensors", asked.capture.selection()
        dump = self.builder.DumpBuilder(folder, side=asked.side, dtype=asked.dtype)
        drift = self.drift.get(asked.side, 0) if again else 0
        stream = np.random.default_rng(3).standard_normal(SHAPE).astype(asked.dtype) + drift
        for number in range(LAYERS):
            wrong = number == 2 and asked.side == "target"
            made = (stream * (self.factor if wrong else 1) + 1).astype(asked.dtype)
            if scope.detail_of("api", f"fc{number}", "Block", "linear", "forward", 0, 0) != "none":
                dump.call(f"fc{number}", "linear", [made], [stream])
                if not again:
                    self._keep_outputs_alone(dump)
            stream = made
        capture = json.loads(json.dumps(asked.capture.to_plain()))
        evidence = f"{asked.side} {self.factor}"
        dump.header_changes = {"recipe": asked.recipe, "capture": capture, "content": evidence}
        dump.write()

    def _keep_outputs_alone(self, dump):
        """Make of the last call one that can be judged, and not looked into."""
        for tensor in dump.lines[(0, 0)][-1]["inputs"]:
            tensor["stored"] = False


@pytest.fixture
def agents(stage_fixtures, monkeypatch):
    """Put hand-made dumps in the place of running a side."""
    made = Agents(stage_fixtures.builder)
    monkeypatch.setattr(job, "run_agent", made)
    return made


@pytest.fixture
def escalate(tmp_path, monkeypatch, agents):
    """Return a function that runs the recipe with escalating capture."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)

    def made(*words):
        return run(composed(*words), command="precflow ...")

    return made


def composed(*words):
    defaults = ("capture=escalating", "target.dtype=float32", "target.device=cpu", "reference.device=cpu", "output=ci")
    limits = "tolerance.standards=[default]"  # a noise floor would need a workload
    return compose(["+recipe=sd_text_encoder", *defaults, limits, *words])


def last_run(folder="."):
    return json.loads(Path(folder, "runs/sd_text_encoder/run.json").read_text())["runs"][-1]


def result():
    return json.loads(Path("runs/sd_text_encoder/public/result.json").read_text())


def scope_of(folder=".", store="runs/sd_text_encoder/store"):
    (found,) = Path(folder, store).glob("region-*/region.json")
    return json.loads(found.read_text())


def dumps(states):
    return {name: state for name, state in states.items() if name.startswith("dump.")}


def test_both_sides_run_a_second_time_for_the_suspect_region_alone(escalate, agents):
    outcome = escalate()
    assert (outcome.verdict, outcome.exit_code) == ("misaligned", 1)
    assert agents.ran == ["reference sketch", "target sketch", "reference tensors", "target tensors"]
    assert list(last_run()["states"])[-12:] == [
        "localize",
        "region",
        "dump.reference@2",
        "dump.target@2",
        "determinism@2",
        "compare@2",
        "judge@2",
        "localize@2",
        "introduced.evaluation",
        "introduced",
        "advise",
        "report",
    ]
    (again,) = Path("runs/sd_text_encoder/store").glob("dump.target@2-*/rank0/step0/records-0.jsonl")
    modules = [json.loads(line)["module"] for line in again.read_text().splitlines()]
    assert modules == ["fc1", "fc2", "fc3", "fc4"]  # around the one that introduces the error, and what fails
    assert result()["verdict"]["verdict"] == "misaligned"
    assert "the second pass has run: 4 calls" in " ".join(result()["region"]["notes"])


def test_nothing_suspect_means_no_second_pass_and_the_report_says_so(escalate, agents):
    agents.factor = 1.0
    outcome = escalate()
    assert outcome.verdict == "aligned"
    assert agents.ran == ["reference sketch", "target sketch"]
    assert "no second pass: nothing is suspect or undecided" in result()["region"]["notes"]
    assert "dump.target@2" not in last_run()["states"]


def test_the_same_command_again_keeps_everything(escalate, agents):
    escalate()
    escalate()
    assert set(last_run()["states"].values()) == {"kept"}
    assert len(agents.ran) == 4


def test_a_changed_limit_judges_again_and_records_again_only_what_is_newly_suspect(escalate, agents):
    escalate()
    escalate("tolerance.relative_l2=2^-12")
    assert set(dumps(last_run()["states"]).values()) == {"kept"}
    assert last_run()["states"]["judge@2"] == "run"
    assert len(agents.ran) == 4
    escalate('tolerance.rules=[{match: "fc4*", relative_l2: 2, because: known}]')
    assert dumps(last_run()["states"]) == {
        "dump.reference": "kept",
        "dump.target": "kept",
        "dump.reference@2": "run",
        "dump.target@2": "run",
    }


def test_a_sketch_and_the_first_pass_are_the_same_dump(escalate, agents):
    escalate("capture=sketch")
    escalate("capture.budget=0")
    assert agents.ran == ["reference sketch", "target sketch", "reference tensors", "target tensors"]


def test_a_side_that_fails_in_its_second_pass_is_resumed_there(escalate, agents):
    agents.fails = "target"
    with pytest.raises(SideError, match="killed"):
        escalate()
    agents.fails = ""
    assert escalate().verdict == "misaligned"
    assert agents.ran[-2:] == ["target tensors", "target tensors"]
    assert last_run()["states"]["dump.reference@2"] == "kept"


def test_a_side_that_does_not_repeat_itself_is_found_by_its_second_pass(escalate, agents):
    agents.drift = {"target": 0.001}
    escalate()
    (found,) = Path("runs/sd_text_encoder/store").glob("determinism@2-*/reproduction.json")
    drifted = json.loads(found.read_text())["unrepeatable"]
    assert drifted[0] == "target: fc1/linear.0/forward.input.0"
    assert all(one.startswith("target: ") for one in drifted)
    assert any("the target does not repeat itself" in reason for reason in result()["verdict"]["reasons"])


def test_a_budget_takes_the_most_suspect_first(escalate):
    escalate("capture.budget=3kB")
    scope = scope_of()
    assert scope["left_out"] > 0
    assert max(scope["bytes"].values()) <= 3000
    assert "capture.budget" in " ".join(result()["region"]["notes"])


def test_chosen_stages_without_a_region_have_one_pass(escalate, agents):
    escalate("stages=[environment,dump,determinism,compare,judge,localize,advise,report]")
    assert agents.ran == ["reference sketch", "target sketch"]
    assert result()["region"]["notes"] == []


@pytest.fixture
def machines(tmp_path, monkeypatch, agents):
    """Return a function that runs one side on its own machine: a working directory of its own, and one store for both."""

    def on(side):
        folder = tmp_path / side
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        return run(composed(f"sides=[{side}]", f"store={tmp_path / 'store'}"), command="precflow ...")

    return on


def test_two_machines_take_turns_and_the_scope_travels_as_a_file(machines, agents, tmp_path, capsys):
    assert machines("reference").verdict is None
    assert "sides=[target]" in capsys.readouterr().err
    assert machines("target").verdict == "misaligned"  # the first pass's, and the target's second one is made already
    said = capsys.readouterr().err
    assert "state=skipped" in said
    scope = said.split("scope of the second pass")[1].split()[0]
    assert json.loads(Path(scope).read_text())["rules"]
    assert f"sides=[reference] store={tmp_path / 'store'}" in said
    assert "has not run yet" in " ".join(result()["region"]["notes"])
    assert machines("reference").verdict == "misaligned"
    assert "the second pass has run" in " ".join(result()["region"]["notes"])
    assert agents.ran == ["reference sketch", "target sketch", "target tensors", "reference tensors"]
    machines("target")
    assert "the second pass has run" in " ".join(result()["region"]["notes"])
    assert len(agents.ran) == 4


def test_no_other_run_is_proposed_while_the_second_pass_is_due_elsewhere(machines, monkeypatch):
    proposed, advised = [], rules.advise

    def noted(evidence, found):
        proposed.append(evidence["keep_tensors"])
        return advised(evidence, found)

    monkeypatch.setattr(rules, "advise", noted)
    for side in ("reference", "target", "reference"):
        machines(side)
    assert proposed == ["", "capture=tensors"]


def test_two_machines_without_a_fault_need_one_turn_each(machines, agents, capsys):
    agents.factor = 1.0
    machines("reference")
    capsys.readouterr()
    assert machines("target").verdict == "aligned"
    assert "Half done" not in capsys.readouterr().err
    assert len(agents.ran) == 2


def test_a_second_pass_for_another_region_is_not_taken(machines, agents, tmp_path):
    machines("reference")
    machines("target")
    machines("reference")
    shutil.rmtree(next((tmp_path / "store" / "sd_text_encoder").glob("dump.target-*")))
    agents.factor = 1.5
    machines("target")
    assert agents.ran[-2:] == ["target sketch", "target tensors"]
    assert last_run()["states"].get("judge@2") is None  # the reference's second pass was chosen from other evidence


def test_the_first_pass_of_a_side_that_is_elsewhere_must_be_there(machines):
    with pytest.raises(StoreError, match="no sealed reference dump"):
        machines("target")


def test_a_plan_shows_the_second_pass_before_and_after_it_is_decided(escalate):
    before = render_plan(build_plan(composed()))
    assert "dump@2" in before
    assert "decided by pass 1" in before
    assert "Pass 2 of escalating capture is decided by pass 1: at most 2GB (capture.budget)." in before
    assert "not estimated: what the dump of the reference and the target takes on disk" in before
    escalate()
    after = build_plan(composed())
    assert {step.state for step in after.steps} == {"kept"}
    assert "Pass 2 of escalating capture: 4 calls to look into" in render_plan(after)


def test_a_plan_tells_the_size_of_a_dump_from_an_earlier_one(escalate):
    escalate("capture=sketch")
    plan = build_plan(composed("capture=tensors", "target.dtype=float16"))
    sizes = {step.stage.name: plan.costs[step.stage.name][1] for step in plan.steps if step.stage.kind == "dump"}
    contents, records = LAYERS + 1, 2 * LAYERS
    assert sizes["dump.reference"] == contents * 4 * 16 * 4 + records * DETAIL_FACTS["tensors"].line_bytes
    assert sizes["dump.target"] == contents * 4 * 16 * 2 + records * DETAIL_FACTS["tensors"].line_bytes
    assert f"about {sizes['dump.reference'] / 1e3:.1f} kB" in render_plan(plan)


def test_a_plan_gives_no_size_of_another_workload_to_a_dump(escalate):
    escalate("capture=sketch")
    plan = build_plan(composed("workload.model.layers=3"))
    assert any(note.startswith("not estimated") for note in plan.notes)
    assert {plan.costs[step.stage.name][1] for step in plan.steps if step.stage.kind == "dump"} == {0}


def test_a_plan_warns_of_a_dump_beyond_its_budget(escalate):
    escalate("capture=sketch")
    text = render_plan(build_plan(composed("capture=tensors", "capture.budget=1kB")))
    assert "the dump of the reference would take about" in text
    assert "(capture.budget)" in text


def test_a_plan_of_equal_sides_has_no_second_pass(escalate, agents):
    agents.factor = 1.0
    escalate()
    text = render_plan(build_plan(composed()))
    assert "dump@2" not in text
    assert "no second pass: nothing is suspect or undecided" in text

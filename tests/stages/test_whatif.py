"""Stage ``whatif``: arms of one process, compared with the reference; the agent is played by a function that writes dumps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precflow.diagnosis.findings import Outcome
from precflow.errors import SideError
from precflow.stages import registry, report, whatif
from precflow.stages.artifacts import read_lines, write_lines

from .conftest import HIDDEN, builder

STAGES = "stages=[dump,determinism,compare,judge,localize,advise,whatif,report]"  # without `introduced`, which starts an agent
SUSPECT = "fc2/linear.0/forward.output.0"


class Agent:
    """Writes a dump for each arm. ``fc2`` is right in an arm that changes it to ``dtype`` float64, else as in the run."""

    def __init__(self, *, broken=False):
        self.requests = []
        self._broken = broken

    def mends(self, arm):
        return any(change["kind"] == "dtype" and SUSPECT in change["records"] for change in arm["changes"])

    def __call__(self, job, side, request, folder):
        self.requests.append(request)
        if self._broken:
            raise SideError("the agent is gone")
        facts = {}
        for arm in request["arms"]:
            mends = self.mends(arm)
            refused = any(change["kind"] == "operator" for change in arm["changes"])
            facts[arm["name"]] = {
                "problem": "no definition" * refused,
                "changed": 1,
                "seconds": [1.5, 3.0] if mends else [1.0, 2.0],
            }
            if refused:
                continue
            dump = builder.DumpBuilder(folder / arm["name"], side="target")
            dump.call("fc1", "linear", [HIDDEN], [HIDDEN])
            dump.call("fc2", "linear", [HIDDEN * np.float32(1 if mends else 1.01) + 1], [HIDDEN])
            dump.write()
        (folder / "whatif.json").write_text(json.dumps({"arms": facts}))


@pytest.fixture
def try_over(made, job_of, tmp_path, monkeypatch):
    """Return a function that takes two dumps, and returns one that runs the stage for a word over them."""

    def over(dumps):
        folders = made(dumps, STAGES, until="advise")
        job = job_of(dumps)

        def run(word, agent, number=0, **changes):
            monkeypatch.setattr(whatif, "ask_agent", agent)
            stage = whatif.STAGE.instance(word)
            folder = tmp_path / f"{word}{number}"
            folder.mkdir(exist_ok=True)
            result = stage.make(replace(job, config=replace(job.config, **changes)), folder, folders)
            folders[stage.name] = folder
            return result, read_lines(folder / whatif.OUTCOMES_FILE, whatif.Outcome), folders, job

        return run

    return over


@pytest.fixture
def tried(pair, try_over):
    """Return a function that runs the stage for a word over a pair that differs at ``fc2``, and returns its outcomes."""
    return try_over(pair(factor=1.01))


def test_a_mend_is_confirmed_beside_the_run_without_it(tried):
    agent = Agent()
    result, (outcome,), _, _ = tried("suspects_in_float64", agent)
    assert (outcome.outcome, outcome.suspects) == ("confirmed", ("fc2 / linear",))
    assert outcome.before == pytest.approx(0.007, rel=0.5)
    assert outcome.removed == outcome.removed_at_end == 1.0
    assert result.note == "confirmed: with linear in float64, all of the error is gone"
    (request,) = agent.requests
    assert [arm["name"] for arm in request["arms"]] == ["unchanged", "arm0"]
    assert request["action"] == "whatif"
    assert request["capture"]["scope"] == ["fc2"]
    assert not request["determinism"]["repeat"]


def test_a_change_that_does_not_help_is_refuted(tried):
    _, (outcome,), _, _ = tried("contiguous_inputs", Agent())
    assert (outcome.outcome, outcome.removed) == ("refuted", 0.0)


def test_an_arm_that_did_not_run_says_why(tried):
    result, (outcome,), _, _ = tried("written_out", Agent())
    assert (outcome.outcome, outcome.problem) == ("did not run", "no definition")
    assert not result.damaged


def test_arguments_that_do_not_differ_start_no_agent_for_them(tried):
    agent = Agent()
    _, (outcome,), _, _ = tried("reference_arguments", agent)
    assert outcome.problem == "none of its arguments differs from the reference's"
    assert [arm["name"] for arm in agent.requests[0]["arms"]] == ["unchanged"]


def test_a_rule_without_a_finding_has_nothing_to_try(tried):
    agent = Agent()
    result, outcomes, _, _ = tried("PF301", agent)
    assert (outcomes, agent.requests) == ([], [])
    assert "no finding that PF301 confirms" in result.note


def test_an_agent_that_ends_is_an_outcome_and_tried_again_next_time(tried):
    result, (outcome,), _, _ = tried("suspects_in_float64", Agent(broken=True))
    assert (outcome.outcome, outcome.problem) == ("did not run", "the agent is gone")
    assert result.damaged


def test_parts_are_not_called_the_fewest_if_an_agent_ended_on_the_way(tried, monkeypatch):
    agent, asked = Agent(), []

    def ends_at_the_second(job, side, request, folder):
        asked.append(request)
        if len(asked) > 1:
            raise SideError("the agent is gone")
        agent(job, side, request, folder)

    result, (outcome,), _, _ = tried("cheapest", ends_at_the_second)
    assert (outcome.outcome, outcome.problem) == ("did not run", "the agent is gone")
    assert result.damaged


def test_what_was_measured_before_a_kill_is_not_run_again(tried):
    tried("suspects_in_float64", Agent())
    agent = Agent()
    _, (outcome,), _, _ = tried("suspects_in_float64", agent)
    assert outcome.outcome == "confirmed"
    assert agent.requests == []


def test_the_cheapest_parts_are_found_and_timed(tried):
    agent = Agent()
    _, (outcome,), _, _ = tried("cheapest", agent)
    assert (outcome.outcome, outcome.suspects, outcome.price) == ("confirmed", ("fc2 / linear",), 1.5)
    assert outcome.title == "fc2 / linear in float64"
    assert outcome.spread == (1.5, 1.5)
    assert agent.requests[-1]["rounds"] == 5
    assert agent.requests[0]["capture"]["scope"] == ["*"]


def test_a_wider_type_that_removes_nothing_is_no_mend(tried, monkeypatch):
    monkeypatch.setattr(Agent, "mends", lambda *_: False)
    _, (outcome,), _, _ = tried("cheapest", Agent())
    assert (outcome.outcome, outcome.removed) == ("refuted", 0.0)


def test_the_report_has_outcomes_and_no_path_of_this_machine(tried, tmp_path):
    _, _, folders, job = tried("suspects_in_float64", Agent())
    folder = tmp_path / "shown"
    folder.mkdir()
    report.STAGE.make(job, folder, folders)
    (outcome,) = json.loads((folder / "public" / "result.json").read_text())["whatifs"]
    assert (outcome["name"], outcome["removed"]) == ("suspects_in_float64", 1)
    assert "linear in float64" in (folder / "public" / "report.md").read_text()
    assert "What if" in next((folder / "public").glob("*.html")).read_text()


def test_each_word_is_a_stage_of_its_own_before_the_report(pair, job_of):
    config = replace(job_of(pair()).config, whatif=("PF214", "top"))
    runs_here = replace(config, target=replace(config.target, dump=""))
    stages = {stage.name: stage for stage in registry.instances(runs_here)}
    assert list(stages)[-3:] == ["whatif.PF214", "whatif.top", "report"]
    assert {"whatif.PF214", "whatif.top"} <= set(stages["report"].needs)
    assert stages["whatif.top"].kind == "whatif"
    elsewhere = replace(runs_here, sides=("reference",))
    for without in (config, elsewhere, replace(runs_here, stages=("dump",))):
        assert not any(stage.kind == "whatif" for stage in registry.instances(without))


LOGITS = np.array([[0.3, 0.7, 0.1], [0.5, np.nextafter(np.float32(0.5), np.float32(0)), 0.1]], np.float32)


def route(dump, *, flipped=False):
    """Add a router whose second choice is a near tie, and the expert that gets what it chooses."""
    logits = np.stack([LOGITS[0], LOGITS[1, [1, 0, 2]]]) if flipped else LOGITS
    chosen = logits.argmax(-1)
    dump.call("gate", "argmax", [chosen], [logits], arguments={"dim": "-1"})
    dump.call("expert", "embedding", [HIDDEN[chosen]], [chosen])


@pytest.fixture
def routed(try_over, tmp_path, monkeypatch):
    """Return the same function over a pair with a router behind it, which chooses otherwise on the target and in every arm."""
    for side, factor in (("reference", 1.0), ("target", 1.01)):
        dump = builder.DumpBuilder(tmp_path / "routed" / side, side=side)
        dump.call("fc1", "linear", [HIDDEN], [HIDDEN])
        dump.call("fc2", "linear", [HIDDEN * np.float32(factor) + 1], [HIDDEN])
        route(dump, flipped=side == "target")
        dump.write()
    run = try_over(tmp_path / "routed")
    write = builder.DumpBuilder.write
    monkeypatch.setattr(builder.DumpBuilder, "write", lambda dump: (route(dump, flipped=True), write(dump)))
    return run


def test_a_near_tie_in_an_arm_is_no_failure(routed):
    _, (outcome,), _, _ = routed("cheapest", Agent())
    assert (outcome.outcome, outcome.suspects) == ("confirmed", ("fc2 / linear",))


def test_an_arm_records_the_choices_that_are_near_ties(routed):
    agent = Agent()
    routed("suspects_in_float64", agent)
    assert agent.requests[0]["capture"]["scope"] == ["expert", "fc2", "gate"]


def test_where_the_target_is_given_the_reference_s_choices_every_arm_is(routed):
    class Chooser(Agent):
        def __call__(self, job, side, request, folder):
            self.given = [each["record"] for each in json.loads(Path(request["choices"]).read_text())["choices"]]
            super().__call__(job, side, request, folder)

    agent = Chooser()
    _, _, folders, _ = routed("suspects_in_float64", agent, whatif=("reference_choice", "suspects_in_float64"))
    assert agent.given == ["gate/argmax.0/forward.output.0"]
    assert agent.requests[0]["capture"]["scope"] == ["*"], "a choice that is not recorded cannot be given"
    assert not list(folders["whatif.suspects_in_float64"].glob("**/choices.json")), "it has paths of this machine"


def test_what_several_words_have_tried_is_told_once(tmp_path):
    tried = [
        Outcome("written_out", "softmax written out", "confirmed", ("a / softmax",), removed=share) for share in (0.98, 0.99)
    ]
    other = Outcome("written_out", "gelu written out", "refuted", ("b / gelu",))
    needs = {f"whatif.{word}": tmp_path / word for word in ("top", "PF211")}
    for folder, outcomes in zip(needs.values(), ([tried[0], other], tried[1:]), strict=True):
        folder.mkdir()
        write_lines(folder / whatif.OUTCOMES_FILE, outcomes)
    assert whatif.read_outcomes(needs) == [tried[1], other]

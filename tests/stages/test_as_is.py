"""Stage ``as_is``: planned where both sides run, resumed where it was killed, and never silently left out."""

import json
from dataclasses import replace

import pytest

from precflow.agent.contract import AS_IS_FILE
from precflow.config.composition import compose
from precflow.config.schema import Determinism, Side, Workload
from precflow.errors import SideError
from precflow.run import steps
from precflow.run.jobs import make_job
from precflow.stages import as_is, judge, registry
from precflow.stages.judge import read_verdict

SCRIPT = ("+recipe=[script,training_alignment]", "workload.script=train.py", "reference.device=cpu", "target.device=cpu")
NAMES = ["as_is.reference", "as_is.target"]


def job_of_script(*words):
    return make_job(compose([*SCRIPT, *words], complete=False), command="")


def planned(*words):
    return [stage.name for stage in steps.select_stages(job_of_script(*words).config) if stage.kind == as_is.KIND]


@pytest.mark.usefixtures("clean")
def test_it_is_planned_for_both_sides_where_the_recipe_asks_and_both_run():
    assert planned() == planned("sides=[target]") == NAMES
    assert planned("sides=[reference]") == NAMES[:1]
    for word in ("determinism.as_is=unchecked", "reference.dump=somewhere", "determinism.data=recorded", "stages=[dump,judge]"):
        assert planned(word) == []
        assert as_is.explain_left_out(job_of_script(word).config)
    needing = [
        stage.name for stage in registry.instances(job_of_script("capture=escalating").config) if NAMES[0] in stage.needs
    ]
    assert needing == ["judge", "judge@2"]


@pytest.mark.usefixtures("clean")
def test_what_the_recipe_changes_is_not_in_its_request_and_the_first_steps_are():
    (stage,) = [one for one in registry.instances(job_of_script("capture.step=[7]").config) if one.name == NAMES[1]]
    declared = stage.declare(job_of_script("capture.step=[7]", "determinism.seed=5", "determinism.algorithms=strict"))
    asked = declared["determinism"]
    assert asked == {"seed": 5, "algorithms": "native", "random_numbers": "device", "dropout": "kept", "repeat": False}
    assert (declared["workload"]["compile"], declared["workload"]["stop_early"]) == ("kept", True)
    assert declared["capture"]["step"] == [0, 1, 7]
    assert stage.declare(job_of_script("tolerance.relative_l2=1%", "capture=tensors")) == stage.declare(job_of_script())


@pytest.fixture
def make(tmp_path, monkeypatch, clean):
    """Return a function that makes the stage of a side, with an agent that answers for each run or dies at one."""
    asked = []

    def made(*words, drew=(), dies_at="", problem="", side="target"):
        def answer(job, of, request, folder):
            assert (of, request["action"]) == (side, "as_is")
            asked.append((folder.name, request["determinism"]["random_numbers"]))
            if folder.name == dies_at:
                raise SideError("the agent was killed")
            noted = [{"step": step, "optimizer": 0, "losses": [2.0], "norm": 5.0, "sketch": [3.0, 4.0]} for step in (0, 1)]
            facts = {"device": "npu", "problem": problem, "has_drawn": folder.name in drew, "steps": noted}
            (folder / (AS_IS_FILE % 0)).write_text(json.dumps(facts))

        monkeypatch.setattr(as_is, "ask_agent", answer)
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / f"as_is.{side}"
        folder.mkdir(exist_ok=True)
        job = make_job(compose([*SCRIPT, *words], complete=False), command="")
        return as_is.STAGE.make(side, job, folder, {}).note

    made.asked = asked
    return made


OTHER_KINDS = ("target.device=[npu,emulated]",)


@pytest.mark.parametrize(
    ("words", "drew", "runs"),
    [
        ((), (), [("as_it_is", "device")]),
        ((), ("as_it_is",), [("as_it_is", "device")]),  # one kind of device draws the same
        (OTHER_KINDS, ("as_it_is",), [("as_it_is", "device"), ("draws_on_cpu", "cpu")]),
        (("determinism.repeat=true",), (), [("as_it_is", "device"), ("again", "device")]),
        (
            (*OTHER_KINDS, "determinism.repeat=true"),
            ("as_it_is",),
            [("as_it_is", "device"), ("draws_on_cpu", "cpu"), ("again", "cpu")],
        ),
    ],
)
def test_a_side_is_run_once_and_more_only_where_that_is_of_use(make, words, drew, runs):
    make(*words, drew=drew)
    assert make.asked == runs


def test_a_run_that_fails_as_it_is_is_the_only_one(make):
    assert make(*OTHER_KINDS, "determinism.repeat=true", drew=("as_it_is",), problem="it raised") == "it raised"
    assert make.asked == [("as_it_is", "device")]


@pytest.mark.parametrize("moment", ["as_it_is", "draws_on_cpu", "again"])
def test_killed_in_any_run_it_ends_with_an_error_and_goes_on_from_there(make, moment):
    options = {"drew": ("as_it_is",)}
    words = (*OTHER_KINDS, "determinism.repeat=true")
    with pytest.raises(SideError, match="killed"):
        make(*words, dies_at=moment, **options)
    before = [name for name, _ in make.asked]
    make.asked.clear()
    assert make(*words, **options) == "2 steps, once more with draws on the CPU"
    names = ["as_it_is", "draws_on_cpu", "again"]
    assert before == names[: names.index(moment) + 1]
    assert [name for name, _ in make.asked] == names[names.index(moment) :]


@pytest.fixture
def verdict_of(pair, made, make, job_of, tmp_path):
    """Return a function that judges two equal dumps beside the runs of some sides."""

    def judged(*sides, **options):
        folders = made(pair("equal"), until="compare")
        for side in sides:
            make(side=side, **options)
            folders[as_is.name_of(side)] = tmp_path / as_is.name_of(side)
        job = job_of(tmp_path / "equal")
        trained = Workload(optimizer={"_target_": "torch.optim.SGD"})
        config = replace(
            job.config, determinism=Determinism(as_is="checked"), reference=Side(), target=Side(), workload=trained
        )
        out = tmp_path / "judged"
        out.mkdir()
        judge.STAGE.make(replace(job, config=config), out, folders)
        return read_verdict(out)

    return judged


def test_what_is_missing_of_a_side_leaves_the_verdict_open(verdict_of):
    verdict = verdict_of("reference")
    assert verdict.verdict == "inconclusive"
    assert verdict.reasons == ("the workload was not run as it is on the target",)


def test_both_sides_that_agree_as_they_are_are_aligned(verdict_of):
    verdict = verdict_of("reference", "target")
    assert (verdict.verdict, verdict.as_is.state) == ("aligned", "agrees")


def test_a_side_that_does_not_run_as_it_is_leaves_it_open(verdict_of):
    verdict = verdict_of("reference", "target", problem="it raised")
    assert verdict.verdict == "inconclusive"
    assert verdict.reasons == ("the workload does not run as it is on the reference: it raised",)

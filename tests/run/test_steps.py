"""Which stage instances a run is about, and where they are kept."""

import dataclasses

import pytest

from precflow.config.composition import compose
from precflow.diagnosis.second_pass import SecondPass
from precflow.errors import ConfigError
from precflow.run import steps
from precflow.run.jobs import make_job
from precflow.run.plan import build_plan
from precflow.run.runner import run
from precflow.run.steps import Agenda
from precflow.run.store import Sealed
from precflow.stages.artifacts import write_value


def test_sides_decide_what_is_wanted(composed):
    config = compose(["+recipe=sd_text_encoder", "sides=[reference]"]).config
    here = ["environment.reference", "dump.reference", "noise.reference"]
    assert [stage.name for stage in steps.select_stages(config)] == here
    config = compose(["+recipe=sd_text_encoder", "sides=[target]"]).config
    names = [stage.name for stage in steps.select_stages(config)]
    assert "environment.reference" not in names
    assert {"dump.reference", "dump.target", "report"} <= set(names)


def test_stages_can_be_chosen_and_must_exist(composed):
    config = composed("stages=[dump,determinism]").config
    assert [stage.name for stage in steps.select_stages(config)] == ["dump.reference", "dump.target", "determinism"]
    with pytest.raises(ConfigError, match="no stage"):
        steps.check_stages(type(config)(stages=("compile",)))


def test_a_store_elsewhere_holds_one_folder_a_recipe(composed, tmp_path):
    where = steps.locate_run(composed(f"store={tmp_path / 'shared'}").config)
    assert where.store.root == tmp_path / "shared" / "compare_dumps"
    assert where.folder.name == "compare_dumps"


def test_a_store_behind_a_url_leaves_the_work_in_the_run_folder(composed, tmp_path):
    config = dataclasses.replace(composed().config, store="s3://bucket/x")
    where = steps.locate_run(config)  # connects to nothing
    assert (where.store.root, where.place) == (where.folder / "store", "s3://bucket/x/compare_dumps")


def test_a_side_that_was_never_made_is_missing(composed, tmp_path):
    job = make_job(compose(["+recipe=sd_text_encoder", "sides=[target]", f"store={tmp_path}"]), command="")
    stage = next(stage for stage in steps.select_stages(job.config) if stage.name == "dump.reference")
    step = steps.resolve(stage, job, steps.locate_run(job.config), {})
    assert step.state == "missing"
    assert "no reference was sealed" in step.because
    assert "make it where the reference runs:  precflow ..." in str(steps.missing_side_error(step, "precflow ..."))


def test_a_side_of_another_recipe_says_what_differs(composed, tmp_path):
    first = make_job(compose(["+recipe=sd_text_encoder", "sides=[reference]", f"store={tmp_path}"]), command="")
    stage = next(stage for stage in steps.select_stages(first.config) if stage.name == "dump.reference")
    where = steps.locate_run(first.config)
    declared = {"version": stage.version, **stage.declare(first)}
    with where.store.making(stage.name, "aa-bb") as attempt:
        where.store.seal(attempt, {"name": stage.name, "key": "aa-bb", "declared": declared, "needs": {}, "note": ""})
    words = ["+recipe=sd_text_encoder", "sides=[target]", f"store={tmp_path}", "determinism.seed=7"]
    second = make_job(compose(words), command="")
    step = steps.resolve(stage, second, where, {})
    assert step.state == "missing"
    assert "seed 1234 -> 7" in step.because


def test_what_other_code_judged_is_judged_again(composed, monkeypatch):
    run(composed(), command="")
    monkeypatch.setattr(steps, "digest_own_code", lambda *, of_agent: "another version")
    states = {step.stage.name: step.state for step in build_plan(composed()).steps}
    assert states["dump.target"] == "kept"
    assert {states["determinism"]} == {"run"}
    assert {states["compare"], states["judge"], states["report"]} == {"run"}


def test_curves_are_found_without_a_download_and_again_if_a_log_differs(tmp_path):
    """A dump's seal covers its records alone; the store has the checksums of what was printed and written beside them."""
    (tmp_path / "train.py").touch()
    words = ["+recipe=script", f"workload.script={tmp_path / 'train.py'}", "curves.loss.standard=loss_1_percent"]
    job = make_job(compose([*words, f"runs={tmp_path}"]), command="")
    where = steps.locate_run(job.config)
    stage = next(stage for stage in steps.select_stages(job.config) if stage.name == "curves")
    files = {"output.log": "aa", "files/gpulog.json": "bb", "agent.log": "cc", "rank0/step0/tensors-0.safetensors": ""}

    def resolve(**other):
        there = {"upload": "s3://bucket/x", "files": {**files, **other}}
        return steps.resolve(
            stage, job, where, {name: Sealed(name, "k", tmp_path / "none", "s", **there) for name in stage.needs}
        )

    with where.store.making("curves", resolve().key) as attempt:
        where.store.seal(attempt, {"name": "curves", "key": resolve().key, "declared": {}, "needs": {}, "note": ""})
    assert resolve().state == resolve(**{"agent.log": "other"}).state == "kept"
    assert resolve(**{"output.log": "other"}).state == resolve(**{"files/gpulog.json": "other"}).state == "run"


def test_another_judge_makes_no_dump_again():
    assert len(steps.digest_own_code(of_agent=True)) == 32
    assert steps.digest_own_code(of_agent=True) != steps.digest_own_code(of_agent=False)


SOMETHING = SecondPass(rules=({"match": ["a"]},))


@pytest.fixture
def agenda(tmp_path, monkeypatch):
    """Return a function that starts an agenda, and one that makes the region's instance."""
    monkeypatch.chdir(tmp_path)

    def start(*words):
        job = make_job(compose(["+recipe=sd_text_encoder", *words]), command="")
        return Agenda(job, steps.locate_run(job.config))

    def region(scope):
        write_value(tmp_path / "region.json", scope)
        return Sealed("region", "k", tmp_path, "s")

    return start, region


def names(agenda, region, *, missing=()):
    found = []
    for stage in agenda:
        if stage.name in missing:
            agenda.postpone(stage)
            continue
        found.append(stage.name)
        if stage.name == "region":
            agenda.learn(stage, region)
    return found


def test_one_pass_ends_with_its_report(agenda):
    start, region = agenda
    assert names(start("capture=tensors"), region(SOMETHING))[-4:] == [
        "introduced.evaluation",
        "introduced",
        "advise",
        "report",
    ]
    assert "region" not in names(start("capture=sketch"), region(SOMETHING))


def test_a_region_with_something_in_it_is_followed_by_the_second_pass(agenda):
    start, region = agenda
    found = names(start("capture=escalating"), region(SOMETHING))
    behind = found[found.index("region") + 1 :]
    assert behind[:2] == ["dump.reference@2", "dump.target@2"]
    assert behind[-5:] == ["localize@2", "introduced.evaluation", "introduced", "advise", "report"]


def test_an_empty_region_is_followed_by_the_report(agenda):
    start, region = agenda
    assert names(start("capture=escalating"), region(SecondPass()))[-5:] == [
        "region",
        "introduced.evaluation",
        "introduced",
        "advise",
        "report",
    ]


def test_what_is_elsewhere_is_put_off_and_the_other_side_made_all_the_same(agenda):
    start, region = agenda
    here = start("capture=escalating")
    found = names(here, region(SOMETHING), missing=["dump.reference@2"])
    assert found[-6:] == ["region", "dump.target@2", "introduced.evaluation", "introduced", "advise", "report"]
    assert [stage.side for stage in here.postponed] == ["reference"]


def test_a_first_pass_cannot_be_put_off(agenda):
    start, _ = agenda
    here = start("capture=escalating")
    stage = next(stage for stage in here if stage.name == "dump.reference")
    assert not here.postpone(stage)
    assert here.postponed == []

"""Which stage instances a run is about, and where they are kept."""

import dataclasses

import pytest

from precflow.config.composition import compose
from precflow.errors import ConfigError
from precflow.run import steps
from precflow.run.jobs import make_job
from precflow.run.plan import build_plan
from precflow.run.runner import run


def test_sides_decide_what_is_wanted(composed):
    config = compose(["+recipe=sd_text_encoder", "sides=[reference]"]).config
    assert [stage.name for stage in steps.wanted(config)] == ["environment.reference", "dump.reference"]
    config = compose(["+recipe=sd_text_encoder", "sides=[target]"]).config
    names = [stage.name for stage in steps.wanted(config)]
    assert "environment.reference" not in names
    assert {"dump.reference", "dump.target", "report"} <= set(names)


def test_stages_can_be_chosen_and_must_exist(composed):
    config = composed("stages=[dump,determinism]").config
    assert [stage.name for stage in steps.wanted(config)] == ["dump.reference", "dump.target", "determinism"]
    with pytest.raises(ConfigError, match="no stage"):
        steps.check_stages(type(config)(stages=("compile",)))


def test_a_store_elsewhere_holds_one_folder_a_recipe(composed, tmp_path):
    where = steps.place(composed(f"store={tmp_path / 'shared'}").config)
    assert where.store.root == tmp_path / "shared" / "compare_dumps"
    assert where.folder.name == "compare_dumps"


def test_an_object_store_is_refused_by_name(composed):
    config = dataclasses.replace(composed().config, store="s3://bucket/x")
    with pytest.raises(ConfigError, match=r"s3://bucket"):
        steps.place(config)


def test_a_side_that_was_never_made_is_missing(composed, tmp_path):
    job = make_job(compose(["+recipe=sd_text_encoder", "sides=[target]", f"store={tmp_path}"]), command="")
    stage = next(stage for stage in steps.wanted(job.config) if stage.name == "dump.reference")
    step = steps.resolve(stage, job, steps.place(job.config), {})
    assert step.state == "missing"
    assert "no reference was sealed" in step.because
    assert "make it where the reference runs:  precflow ..." in str(steps.missing_side(step, "precflow ..."))


def test_a_side_of_another_recipe_says_what_differs(composed, tmp_path):
    first = make_job(compose(["+recipe=sd_text_encoder", "sides=[reference]", f"store={tmp_path}"]), command="")
    stage = next(stage for stage in steps.wanted(first.config) if stage.name == "dump.reference")
    where = steps.place(first.config)
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
    monkeypatch.setattr(steps, "own_code", lambda *, of_agent: "another version")
    states = {step.stage.name: step.state for step in build_plan(composed()).steps}
    assert states["dump.target"] == "kept"
    assert {states["determinism"]} == {"run"}
    assert {states["compare"], states["judge"], states["report"]} == {"run"}


def test_another_judge_makes_no_dump_again():
    assert len(steps.own_code(of_agent=True)) == 32
    assert steps.own_code(of_agent=True) != steps.own_code(of_agent=False)

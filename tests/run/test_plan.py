"""A plan says what is kept, what runs and which value makes the difference; it computes and writes nothing."""

import re

from precflow.run import plan
from precflow.run.runner import run


def rows(text):
    return {line.split()[0]: line for line in text.splitlines() if re.search(r" (kept|run|missing) ", line)}


def test_a_plan_writes_nothing(composed, tmp_path):
    planned = plan.build_plan(composed())
    assert {step.state for step in planned.steps} == {"run"}
    assert not (tmp_path / "runs").exists()


def test_finished_stages_are_kept_and_the_changed_limit_is_named(composed):
    run(composed(), command="")
    planned = plan.build_plan(composed("tolerance.cosine_similarity=0.9999"))
    states = {step.stage.name: step.state for step in planned.steps}
    assert states["compare"] == states["dump.target"] == "kept"
    assert states["judge"] == states["report"] == "run"
    text = plan.render_plan(planned)
    assert "tolerance.cosine_similarity (unset) -> 0.9999" in rows(text)["judge"]
    assert "nothing is computed" in text


def test_another_dump_runs_what_reads_it(composed, tmp_path):
    run(composed(), command="")
    composed(name="other", factor=1.5, content="e9")
    planned = plan.build_plan(composed(f"target.dump={tmp_path / 'other/target'}"))
    assert [step.stage.name for step in planned.steps if step.state == "kept"] == ["dump.reference"]


def test_json_has_a_row_a_stage(composed):
    plain = plan.build_plan(composed()).as_json()
    assert [row["stage"] for row in plain["stages"]][-1] == "report"
    assert plain["recipe"] == "compare_dumps"


def test_json_tells_no_size_that_nobody_knows(composed):
    assert {row["bytes"] for row in plan.build_plan(composed()).as_json()["stages"]} == {None}
    run(composed(), command="")
    sizes = {row["stage"]: row["bytes"] for row in plan.build_plan(composed()).as_json()["stages"]}
    assert sizes["compare"] > 0


def test_ascii_plan_is_ascii(composed):
    assert plan.render_plan(plan.build_plan(composed()), ascii_only=True).isascii()

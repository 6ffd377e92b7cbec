import json

import pytest

from precflow.errors import ConfigError
from precflow.run.sizes import Rehearsal
from precflow.verbs import plan

WORDS = ["+recipe=compare_dumps", "reference.dump=a", "target.dump=b"]


def test_a_plan_writes_nothing(capsys, tmp_path):
    for side in ("a", "b"):
        (tmp_path / side / "rank0" / "step0").mkdir(parents=True)  # a dump whose writer was stopped at once
    assert plan.main(WORDS) == 0
    shown = capsys.readouterr().out
    assert "compare" in shown
    assert not (tmp_path / "runs").exists()


def test_json(capsys, tmp_path):
    for side in ("a", "b"):
        (tmp_path / side / "rank0" / "step0").mkdir(parents=True)  # a dump whose writer was stopped at once
    assert plan.main([*WORDS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "compare_dumps"


def test_a_misspelt_variable_is_told(capsys, tmp_path):
    for side in ("a", "b"):
        (tmp_path / side / "rank0" / "step0").mkdir(parents=True)
    assert plan.main([*WORDS, "target.variables.HCCL_DETERMINISITIC=true"]) == 0
    assert "warning: target.variables.HCCL_DETERMINISITIC" in capsys.readouterr().out


def test_a_recipe_that_cannot_run_has_no_plan():
    with pytest.raises(ConfigError, match=r"the recipe asks for it: reference\.dump=gpu_dump"):
        plan.main(["compare_dumps"])


@pytest.mark.parametrize(("words", "asked"), [([], False), (["--sizes"], True), (["capture.budget=1GB"], True)])
def test_a_run_without_values_is_made_for_a_budget_or_where_it_is_asked_for(capsys, monkeypatch, tmp_path, words, asked):
    made = []

    def rehearsal(side, job, where, *, make):
        made.append(make)
        job.say("building the model without values")
        return Rehearsal((), "float32", "it looks (model.py:3 in forward)")

    monkeypatch.setattr("precflow.run.sizes.rehearse", rehearsal)
    assert plan.main(["sd_text_encoder", *words]) == 0
    said = capsys.readouterr()
    assert made == [asked]
    assert "does not run without values: it looks (model.py:3 in forward)" in said.out
    assert said.err == " to tell sizes: building the model without values\n"
    assert not (tmp_path / "runs").exists()

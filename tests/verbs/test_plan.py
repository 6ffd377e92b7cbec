import json

import pytest

from precflow.errors import ConfigError
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


def test_a_recipe_that_cannot_run_has_no_plan():
    with pytest.raises(ConfigError, match="nothing to run"):
        plan.main(["compare_dumps"])

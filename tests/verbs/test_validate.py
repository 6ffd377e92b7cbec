import json
import subprocess
import sys

import pytest

from precflow import cli
from precflow.verbs import validate

BROKEN = """\
# what
determinism:
  algorithms: off
tolerance:
  rules:
    - match: "*.x"
      relative_l2: 50%
accepted:
  - match: a
    because: b
    until: "2025-03-31"
"""


def test_every_problem_with_its_line(capsys, team):
    team("broken", BROKEN)
    team("fine", "about: {title: x}")
    assert validate.main(["recipes/broken.yaml", "recipes/fine.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == " recipes/broken.yaml"
    assert (
        lines[1].split()
        == "3 determinism.algorithms YAML reads `off` as false. Use native (also: strict, warn, when_needed)".split()
    )
    assert lines[2].split() == "6 tolerance.rules[0] loosens relative_l2 of `calibrated` without `because`".split()
    assert lines[3].split()[:2] == ["recipes/fine.yaml", "ok"]
    assert "1 of 2 recipes is not usable" in lines[4]


def test_files_of_a_team_that_are_no_recipes_are_not_called_recipes(capsys, tmp_path):
    (tmp_path / "team" / "rule").mkdir(parents=True)
    (tmp_path / "team" / "rule" / "ours.yaml").write_text("# a rule\nid: T1\n")
    folder = ["--config-dir", str(tmp_path / "team")]
    assert validate.main(["rule/ours", *folder]) == 2
    assert " the file is not usable" in capsys.readouterr().err
    assert validate.main(["sd_text_encoder", "rule/ours", *folder]) == 2
    assert " 1 of 2 files is not usable" in capsys.readouterr().err


def test_an_accepted_difference_that_has_expired_is_told(capsys, team):
    team("late", "accepted:\n  - match: a\n    because: b\n    until: '2025-03-31'\n")
    assert validate.main(["late"]) == 2
    assert "accepted[0].until   2025-03-31 has passed: this difference fails again" in capsys.readouterr().err


def test_everything_that_is_shipped_is_usable(capsys):
    assert validate.main([]) == 0
    said = capsys.readouterr().err
    assert "usable, 1 for those who trust it" in said
    assert "not usable" not in said


def test_what_is_named_must_be_trusted(capsys, monkeypatch):
    assert validate.main(["minilm"]) == 2
    assert "not trusted" in capsys.readouterr().err
    monkeypatch.setenv("PRECFLOW_TRUST", "minilm_workload")
    assert validate.main(["minilm"]) == 0


def test_a_misspelt_variable_is_a_warning(capsys, sites):
    sites("here", "target: {variables: {HCCL_DETERMINISITIC: 'true'}}")
    words = ["+recipe=sd_text_encoder", "+site=here"]
    assert validate.main(words) == 0
    said = capsys.readouterr().err
    assert "warning: target.variables.HCCL_DETERMINISITIC" in said
    assert "Did you mean  HCCL_DETERMINISTIC ?" in said
    assert validate.main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["recipes"][0]["warnings"]) == 1


@pytest.mark.parametrize("words", [["+recipe=sd_text_encoder", "target.devise=npu"], ["sd_text_encoder", "target.devise=npu"]])
def test_overrides_are_checked_too(capsys, words):
    assert validate.main(words) == 2
    assert "Did you mean  target.device ?" in capsys.readouterr().err
    assert validate.main([words[0]]) == 0


def test_json(capsys, team):
    team("broken", "target: {dtype: bf16}")
    assert validate.main(["broken", "sd_text_encoder", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert [(row["recipe"], row["usable"]) for row in said["recipes"]] == [("broken", False), ("sd_text_encoder", True)]
    assert said["recipes"][0]["problems"][0]["key"] == "target.dtype"
    assert said["unusable"] == 1


def test_an_empty_recipe_is_not_usable(capsys, team):
    team("empty", "# to be written\n")
    assert validate.main(["empty"]) == 2
    assert "is empty: a recipe says what is run" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    assert validate.main(["recipes/none.yaml"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_it_takes_no_torch():
    code = "import sys; from precflow.cli import main; main(['validate', 'minilm']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_command_line_is_checked_as_a_run_and_a_recipe_may_leave_something_open(capsys, tmp_path):
    assert validate.main(["compare_dumps"]) == 0
    assert validate.main(["+recipe=compare_dumps"]) == 2  # as `precflow +recipe=compare_dumps`, which sends here
    assert "reference.dump=gpu_dump" in capsys.readouterr().err
    dumps = [f"{side}.dump={tmp_path / side}" for side in ("reference", "target")]
    assert validate.main(["+recipe=compare_dumps", *dumps]) == 2
    assert f"{tmp_path}/target does not exist" in capsys.readouterr().err
    for side in ("reference", "target"):
        (tmp_path / side).mkdir()
    assert validate.main(["+recipe=compare_dumps", *dumps]) == 0


def test_a_file_is_checked_against_the_code_that_it_names(tmp_path, monkeypatch, capsys):
    """Without importing it: the module would need torch, or run what it should not."""
    (tmp_path / "our_code.py").write_text("raise RuntimeError('imported')\ndef model(width): ...\ndef inputs(path): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PRECFLOW_TRUST", "our_code")
    recipe = tmp_path / "ours.yaml"

    def check(model, path):
        lines = ["# @package _global_", "# Ours.", "about: {title: x}", "workload:", f"  model: {model}"]
        recipe.write_text("\n".join([*lines, f"  inputs: {{_target_: our_code.inputs, path: {path}}}"]))
        code = cli.main(["validate", str(recipe)])
        return code, capsys.readouterr().err

    code, said = check("{_target_: our_code.modl, width: 3}", "a.pt")
    assert code == 2
    assert "module our_code has no function modl. Did you mean  model ?" in said
    code, said = check("{_target_: our_code.model, wide: 3}", "a.pt")
    assert code == 2
    assert "model has no argument `wide`" in said
    code, said = check("{_target_: our_code.model, width: 3}", "/data/a.pt")
    assert code == 0
    assert "warning: workload.inputs.path: /data/a.pt is a path of one machine" in said
    assert "warning" not in check("{_target_: our_code.model, width: 3}", "a.pt")[1]

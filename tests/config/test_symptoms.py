"""Recipes that start from a symptom: every command of theirs and of their page composes, and chooses what its file says."""

import re
import shlex
from pathlib import Path

import pytest

from precflow.config.composition import compose

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "recipes" / "symptom").glob("*.yaml"))
PAGE = (ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8")
COMMANDS = {
    line.strip(): re.split(r"  +", line.strip())[0]
    for text in (PAGE, *(file.read_text(encoding="utf-8") for file in FILES))
    for line in re.findall(r"^(?:#   |      )precflow ('\+recipe.*)$", text, re.MULTILINE)
}


@pytest.mark.parametrize("command", COMMANDS.values())
def test_every_command_composes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    config = compose(shlex.split(command)).config
    assert config.about.title
    assert config.recipe.partition("+symptom/")[2] in {file.stem for file in FILES}


def test_every_symptom_is_a_leaf_of_the_page():
    assert all(f"symptom/{file.stem}]" in PAGE for file in FILES)


def chosen(symptom, base="[script,{}]"):
    words = [f"+recipe={base.format(f'symptom/{symptom}')}"]
    return compose(words, complete=False).config


def test_what_is_recorded_is_enough_for_the_symptom():
    nan, step, drift, spikes, crash = map(chosen, ("nan", "first_step", "drift", "spikes", "crash"))
    assert (nan.capture.detail, nan.capture.keep_last) == ("statistics", 3)
    assert step.capture.step == (0,)
    assert {"backward", "gradient"} <= set(step.capture.phase)
    assert step.determinism.as_is == "checked"
    assert drift.curves["loss"].standard == "mindformers_migration"
    assert "optimizer" in set(drift.capture.phase) & set(spikes.capture.phase)
    assert (crash.capture.debug, crash.stages) == ("blocking", ("environment", "dump"))
    assert chosen("slow").stages == ("environment",)
    assert chosen("evaluation").workload.evaluation

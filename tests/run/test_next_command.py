"""The command for the other side: typed as it is printed, it composes to the same recipe with the other side."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from precflow.config.command_line import parse
from precflow.config.composition import compose
from precflow.run.jobs import make_job
from precflow.run.next_command import command_for_side


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """Return a function that gives the recipe of a command line, and what is printed for the target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRECFLOW_TRUST", raising=False)

    def make(*words, options=()):
        config_dirs = parse(options).config_dirs
        composed = compose([*words, "sides=[reference]"], config_dirs=config_dirs, complete=False)
        job = make_job(composed, command=shlex.join(["precflow", *options, *words]))
        return composed.config, command_for_side(job, "target")

    return make


def composed_from(command):
    line = parse(shlex.split(command)[1:])
    return compose(line.words, config_dirs=line.config_dirs, complete=False).config


WORDS = (
    "+recipe=sd_text_encoder",
    "capture=escalating",
    "+emulate=layernorm_eps",
    "tolerance.max_rel_error=2^-10",
    'capture.rules=[{match:"*.self_attn",detail:tensors},{match:"*",sample:1%}]',
    "workload.model.weights=/models/sd 15/a=b",
    "target.dtype=float32",
)


@pytest.mark.parametrize("given", [(), ("store=evidence",), ("runs=elsewhere",), ("store=evidence", "runs=elsewhere")])
def test_the_command_composes_to_the_same_recipe(printed, given):
    here, command = printed(*WORDS, *given)
    there = composed_from(command)
    assert there == replace(here, sides=("target",), store=there.store, runs=there.runs)


def test_a_store_is_told_by_its_absolute_path(printed, tmp_path):
    _, command = printed(*WORDS, "store=evidence")
    assert command.endswith(f"sides=[target] store={tmp_path / 'evidence'}")
    assert "runs=" not in command


def test_a_store_is_told_as_it_was_named_whatever_the_recipe_is_called(printed, tmp_path, team):
    team("llama/attention", "about: {title: t}")
    _, command = printed("+recipe=llama/attention", "store=evidence")
    assert command.endswith(f"sides=[target] store={tmp_path / 'evidence'}")


def test_without_a_store_it_is_the_run_folder(printed, tmp_path):
    assert printed(*WORDS)[1].endswith(f"sides=[target] runs={tmp_path / 'runs'}")
    command = printed(*WORDS, "runs=elsewhere")[1]
    assert command.endswith(f"sides=[target] runs={tmp_path / 'elsewhere'}")
    assert command.count("runs=") == 1


def test_a_run_folder_beside_a_store_stays_as_it_was_typed(printed):
    assert "runs=elsewhere" in printed(*WORDS, "store=evidence", "runs=elsewhere")[1]


def test_whom_the_user_trusts_and_where_recipes_are_goes_along(printed, monkeypatch, tmp_path):
    monkeypatch.setenv("PRECFLOW_TRUST", "ours,theirs")
    (tmp_path / "team").mkdir()
    _, command = printed(*WORDS, options=("--config-dir", "team"))
    assert command.startswith(f"PRECFLOW_TRUST=ours,theirs precflow --config-dir {tmp_path / 'team'} +recipe=sd_text_encoder ")


def test_a_site_is_that_of_the_other_machine(printed, tmp_path):
    (tmp_path / "conf" / "site").mkdir(parents=True)
    site = "# @package _global_\nsite:\n  name: here\n  store: /evidence\n"
    (tmp_path / "conf" / "site" / "here.yaml").write_text(site)
    _, command = printed("+recipe=sd_text_encoder", "+site=here", options=("--config-dir", str(tmp_path / "conf")))
    assert command.endswith("+recipe=sd_text_encoder +site=SITE sides=[target]")
    assert Path("/evidence").name not in command.replace("--config-dir", "")


@pytest.mark.parametrize("name", ["mine.yaml", "some where/mine.yaml", "a=b.yaml"])
def test_a_recipe_file_is_found_from_any_folder(printed, tmp_path, monkeypatch, name):
    (tmp_path / "some where").mkdir()
    (tmp_path / name).write_text("defaults: [sd_text_encoder]\nabout: {title: mine}\n")
    here, command = printed(f"+recipe={name}", "target.dtype=float32")
    monkeypatch.chdir("/")
    there = composed_from(command)
    assert (there.recipe, there.about.title, there.target) == (here.recipe, "mine", here.target)

"""A proposed command, typed as it is printed, composes to this run's recipe with the change or for the other side."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from precflow import resources
from precflow.config.command_line import parse
from precflow.config.composition import compose
from precflow.config.sections import whatifs
from precflow.diagnosis.advice import whatif_files
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.whatif import find_confirming
from precflow.diagnosis.findings import Finding
from precflow.run.jobs import make_job
from precflow.stages.advise import leave_out_idle
from precflow.stages.commands import (
    change_command,
    changes_nothing,
    command_for_side,
    config_dirs,
    describe_change,
    environment_assignments,
    key_of,
    look_command,
)
from precflow.stages.report import propose

WORDS = (
    "+recipe=sd_text_encoder",
    "capture=sketch",
    "+emulate=layernorm_eps",
    "tolerance.max_rel_error=2^-10",
    'capture.rules=[{match:"*.self_attn",detail:tensors},{match:"*",sample:1%}]',
    "workload.model.layers=2",
    "workload.model.weights=/models/sd 15/a=b",
    "store=evidence",
)
RULES = load_rules([resources.directory("conf") / "rule"])
TRIED = [rule.try_it for rule in RULES if rule.try_it]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return a function that gives the recipe of a command line, and the job of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRECFLOW_TRUST", raising=False)

    def make(*words, options=()):
        composed = compose(words, config_dirs=parse(options).config_dirs, complete=False)
        return composed.config, make_job(composed, command=shlex.join(["precflow", *options, *words]))

    return make


def composed_from(command):
    line = parse(shlex.split(command)[1:])
    return compose(line.words, config_dirs=line.config_dirs, complete=False).config


def test_what_was_overridden_stays_overridden(asked):
    here, job = asked(*WORDS)
    there = composed_from(change_command(job, "target.dtype=float32"))
    assert here.workload.model["layers"] == there.workload.model["layers"] == 2
    assert there == replace(here, target=replace(here.target, dtype="float32"))


def test_what_was_typed_for_the_same_key_gives_way(asked):
    here, job = asked(*WORDS, "target.dtype=float16", "++determinism.seed=5")
    command = change_command(job, "target.dtype=bfloat16 determinism.seed=7")
    assert "float16" not in command.replace("bfloat16", "")
    there = composed_from(command)
    assert (there.target.dtype, there.determinism.seed) == ("bfloat16", 7)
    assert there.tolerance == here.tolerance


def test_the_difference_is_what_is_new_and_what_gives_way(asked):
    _, job = asked(*WORDS, "target.dtype=float16")
    assert describe_change(job, "determinism.seed=7") == "determinism.seed=7"
    change = "target.dtype=float32 determinism.seed=7"
    assert describe_change(job, change) == "target.dtype=float32   determinism.seed=7   instead of   target.dtype=float16"


@pytest.mark.parametrize("given", ["target={dtype:float16}", "~target.dtype"])
def test_the_change_counts_whatever_was_typed_around_it(asked, given):
    here, job = asked(*WORDS, given)
    there = composed_from(change_command(job, "target.dtype=float32"))
    assert there.target == replace(here.target, dtype="float32")


@pytest.mark.parametrize("given", [(), ("capture.detail=digest",), ("capture.level=[module]", "capture.detail=digest")])
def test_another_detail_is_taken_and_levels_stay(asked, given):
    here, job = asked("+recipe=sd_text_encoder", "capture=statistics", *given)
    command = change_command(job, "capture=escalating")
    assert "statistics" not in command
    there = composed_from(command)
    assert (there.capture.detail, there.capture.level) == ("escalating", here.capture.level)


def test_several_recipes_are_chosen_again(asked, team):
    team("strict", "determinism: {algorithms: strict}")
    here, job = asked("+recipe=[sd_text_encoder,strict]")
    there = composed_from(change_command(job, "target.dtype=float32"))
    assert there.recipe == here.recipe == "sd_text_encoder+strict"
    assert there.determinism == here.determinism


def test_a_recipe_file_is_named_as_it_was_typed(asked, tmp_path):
    (tmp_path / "some where").mkdir()
    (tmp_path / "some where" / "mine.yaml").write_text("defaults: [sd_text_encoder]\nabout: {title: mine}\n")
    _, job = asked("+recipe=some where/mine.yaml")
    assert composed_from(change_command(job, "target.dtype=float32")).about.title == "mine"


def test_folders_of_recipes_and_whom_the_user_trusts_go_along(asked, tmp_path, monkeypatch):
    (tmp_path / "team" / "recipes").mkdir(parents=True)
    _, job = asked("+recipe=sd_text_encoder", options=("--config-dir", "team"))
    monkeypatch.setenv("PRECFLOW_TRUST", "ours,my package")
    assert [str(folder) for folder in config_dirs(job)] == ["team"]
    assert environment_assignments() == ["PRECFLOW_TRUST='ours,my package'"]
    expected = "PRECFLOW_TRUST='ours,my package' precflow --config-dir team +recipe=sd_text_encoder target.dtype=float32"
    assert change_command(job, "target.dtype=float32") == expected


CONVERTED = ("+recipe=onnx_conversion", "target.conversion.provider=CUDAExecutionProvider", "target.dtype=float16")
KEPT_NODE = "target.conversion.keep_float32=[/encoder/Add]"


@pytest.mark.parametrize("tried", TRIED)
def test_every_change_that_a_shipped_rule_proposes_can_be_made(asked, tried):
    others = "algorithms=native random_numbers=device seed=3 as_is=checked repeat=false"
    script = ("+recipe=script", "workload.script=train.py", "capture.level=[module]", "capture.phase=[forward]")
    words = script if re.search(r"data=recorded|module,api|capture\.phase", tried) else WORDS
    words = CONVERTED if "conversion" in tried or "half_keep" in tried else words
    here, job = asked(*words, *(f"determinism.{other}" for other in others.split()))
    change = "capture=escalating" if "keep_tensors" in tried else tried.replace("{{ seed_reference }}", "7")
    change = change.replace("{{ changes_undone or 'determinism.repeat=true' }}", "determinism.repeat=true")
    change = re.sub(r"{{ '([^']*)' if exported_by.*?}}", r"\1", change).replace("{{ half_keep }}", KEPT_NODE)
    change = re.sub(r"{{ '' if rate_shift_steps.*? else '([^']*)' }}", r"\1", change)
    change = re.sub(r"{{ (curve_|\(curve_).*?}}", "3", change)
    assert "{{" not in change
    assert not changes_nothing(job, change)
    assert composed_from(change_command(job, change)) != here


@pytest.mark.parametrize(("word", "key"), [("++a.b=c=d", "a.b"), ("~a.b", "a.b"), ("~a.b=c", "a.b"), ("+emulate=x", "emulate")])
def test_the_key_of_a_word(word, key):
    assert key_of(word) == key


RUNS = {
    "functions": ["+recipe=sd_text_encoder"],
    "a model that writes": ["+recipe=llm_generate"],
    "functions in training": ["+recipe=[sd_text_encoder,training_alignment]"],
    "a table of operators": ["+recipe=[sd_text_encoder,operator_check]"],
    "two versions": ["+recipe=[sd_text_encoder,upgrade_check]"],
    "a function of the user": ["+recipe=minilm"],
    "a script": ["+recipe=script", "workload.script=train.py"],
    "a script with a curve": ["+recipe=dit_training", "workload.script=train.py"],
    "a script that draws on the CPU": ["+recipe=glm_training", "workload.script=train.py"],
    "dumps": ["+recipe=compare_dumps", "reference.dump=here", "target.dump=there"],
    "a dump and a run": ["+recipe=sd_text_encoder", "reference.dump=here"],
    "a run and a dump": ["+recipe=sd_text_encoder", "target.dump=there"],
    "logs": ["+recipe=loss_curves", "reference.log=here.json", "target.log=there.json"],
}
NOTHING_RUNS = {"dumps", "logs"}
SCRIPTS = {kind for kind in RUNS if kind.startswith("a script")}
SOME = {"PF211", "PF302", "PF701"}  # of the first a what-if says that it confirms it, the second names one, the third has none


def test_every_kind_of_shipped_recipe_is_tried():
    named = " ".join(word for words in RUNS.values() for word in words)
    recipes = {file.stem: file.read_text(encoding="utf-8") for file in resources.directory("recipes").glob("*.yaml")}
    alike = {name for name, text in recipes.items() if "    _target_: precflow.workloads." in text}  # as sd_text_encoder
    # They read a source or the state of a machine, and apply no rule.
    without_advice = {name for name, text in recipes.items() if re.search(r"stages: \[(scan|machine)\b", text)}
    assert [name for name in recipes.keys() - alike - without_advice if name not in named] == []


@pytest.mark.parametrize("kind", RUNS)
def test_no_finding_proposes_what_precflow_refuses(asked, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "minilm_workload")
    (tmp_path / "train.py").write_text("")
    _, job = asked(*RUNS[kind])
    changes = dict.fromkeys(one.replace("{{ seed_reference }}", "7") for one in TRIED if "{{ keep" not in one)
    found = [Finding("PF901", "a change", "likely", try_it=one) for one in (*changes, "capture=escalating")]
    found += [Finding(rule.id, "a rule", "likely", confirm=rule.confirm) for rule in RULES if rule.id in SOME]
    proposed = propose(job, [leave_out_idle(job, one) for one in found])
    commands = {one.try_it for one in proposed if one.try_it}
    assert bool(commands) is (kind not in NOTHING_RUNS)
    assert all(composed_from(command.removeprefix("PRECFLOW_TRUST=minilm_workload ")) for command in commands)
    of_whatifs = {one.rule for one in proposed if "whatif=" in one.try_it}
    of_functions = {"functions", "functions in training", "two versions", "a function of the user", "a dump and a run"}
    assert bool(of_whatifs) is (kind in of_functions)
    of_dtypes = [command for command in commands if " target.dtype=" in command]
    assert bool(of_dtypes) is (kind not in {*SCRIPTS, "a run and a dump", *NOTHING_RUNS})


def test_every_what_if_that_is_proposed_for_a_rule_is_known():
    known = whatif_files.load_whatifs([resources.directory("conf") / "whatif"])
    findings = [Finding(rule.id, "a rule", "likely", confirm=rule.confirm) for rule in RULES]
    proposed = {finding.rule for finding in findings if find_confirming(finding, known)}
    assert "PF211" in proposed
    assert proposed <= set(whatifs.known_words())


# On the machine of the other side


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


CONTINUED = (
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
    here, command = printed(*CONTINUED, *given)
    there = composed_from(command)
    assert there == replace(here, sides=("target",), store=there.store, runs=there.runs)


def test_a_store_is_told_by_its_absolute_path(printed, tmp_path):
    _, command = printed(*CONTINUED, "store=evidence")
    assert command.endswith(f"sides=[target] store={tmp_path / 'evidence'}")
    assert "runs=" not in command


def test_a_store_is_told_as_it_was_named_whatever_the_recipe_is_called(printed, tmp_path, team):
    team("llama/attention", "about: {title: t}")
    _, command = printed("+recipe=llama/attention", "store=evidence")
    assert command.endswith(f"sides=[target] store={tmp_path / 'evidence'}")


def test_without_a_store_it_is_the_run_folder(printed, tmp_path):
    assert printed(*CONTINUED)[1].endswith(f"sides=[target] runs={tmp_path / 'runs'}")
    command = printed(*CONTINUED, "runs=elsewhere")[1]
    assert command.endswith(f"sides=[target] runs={tmp_path / 'elsewhere'}")
    assert command.count("runs=") == 1


def test_a_run_folder_beside_a_store_stays_as_it_was_typed(printed):
    assert "runs=elsewhere" in printed(*CONTINUED, "store=evidence", "runs=elsewhere")[1]


def test_whom_the_user_trusts_and_where_recipes_are_goes_along(printed, monkeypatch, tmp_path):
    monkeypatch.setenv("PRECFLOW_TRUST", "ours,theirs")
    (tmp_path / "team").mkdir()
    _, command = printed(*CONTINUED, options=("--config-dir", "team"))
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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "sd_text_encoder:target"),
        (["name=first_try"], "first_try:target"),
        (["runs=there"], "there/sd_text_encoder:target"),
        (["store=evidence"], "evidence/sd_text_encoder:target"),
        (["target.dump=given here"], "'given here'"),
    ],
)
def test_a_dump_goes_by_what_can_be_typed_for_it(asked, words, name):
    _, job = asked("+recipe=sd_text_encoder", *words)
    assert look_command(job, "inspect TARGET --match x") == f"precflow inspect {name} --match x"

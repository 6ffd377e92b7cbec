"""Commands that people type who come from other tools, or by a slip: each is answered with the line that does it here."""

import json
from dataclasses import replace

import pytest

from precflow import cli
from precflow.config.composition import compose
from precflow.config.key_tree import explain_problem
from precflow.config.search_path import list_folders, list_names
from precflow.run.manifest import Manifest
from precflow.run.store import Store


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("run +recipe=minilm", "precflow +recipe=minilm"),
        ("run sd_text_encoder target.dtype=float32", "precflow +recipe=sd_text_encoder target.dtype=float32"),
        ("rerun", "precflow +recipe=NAME"),
        ("check ours.yaml", "precflow validate ours.yaml"),
        ("dryrun +recipe=minilm", "precflow plan +recipe=minilm"),
        ("trend", "precflow history"),
        ("list", "precflow ls"),
        ("report", "precflow open"),
        ("help", "precflow --help"),
        ("+recipe=minilm --dry-run", "precflow plan +recipe=NAME"),
        ("+recipe=minilm --resume", "the same command again goes on where the last one stopped"),
        ("+recpie=minilm", "Did you mean  recipe ?"),
        ("plan +recipe=sd_text_encoder store=s3:/bucket/x", "s3://bucket/x"),
        ("plan +recipe=script", "workload.script=train.py"),
        ("plan +recipe=loss_curves", "target.log=npu.json"),
        ("plan +recipe=compare_dumps", "reference.dump=gpu_dump"),
        ("plan +recipe=operator_check", "+recipe=[sd_text_encoder,operator_check]"),
        ("plan +recipe=[script,training_alignment]", "workload.script=train.py"),
    ],
)
def test_the_line_that_does_it_is_told(typed, told, capsys):
    assert cli.main(typed.split()) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "prune" not in said


def test_one_slip_is_one_problem(capsys):
    assert cli.main(["plan", "+recpie=minilm", "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


def test_only_the_word_itself_leads_to_a_verb_that_deletes(capsys):
    for typed, is_offered in (("rune", False), ("purge", False), ("prun", True)):
        assert cli.main([typed]) == 2
        assert ("Did you mean  prune" in capsys.readouterr().err) is is_offered, typed


def test_help_has_an_example_of_each_verb(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"precflow {verb.example}" in shown and verb.example.startswith(name) for name, verb in cli.list_verbs().items())
    assert max(map(len, shown.splitlines())) <= 130
    assert "(redacted)" not in shown


def test_a_recipe_asks_for_nothing_that_is_there(tmp_path, capsys):
    log = tmp_path / "a.csv"
    log.write_text("step,loss\n0,1\n")
    assert cli.main(["plan", "+recipe=loss_curves", f"reference.log={log}"]) == 2
    said = capsys.readouterr().err
    assert "target.log=npu.json" in said
    assert "reference.log" not in said


def test_words_that_recipes_ask_for_are_words_of_a_command_line():
    for name in list_names("recipe", list_folders()):
        if name != "minilm":  # its workload is not part of precflow, so it is not trusted here
            for word in compose([f"+recipe={name}"], complete=False).config.about.asks.values():
                key = word.partition("=")[0]
                assert key == "recipe" or not explain_problem(tuple(key.split("."))), (name, word)


@pytest.fixture
def history(tmp_path, monkeypatch):
    """A run folder ``runs/x`` with twelve runs; the second has a key changed, and wrote the only page."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "x"
    store, manifest = Store(folder / "store"), Manifest(folder)
    with store.making("report", "aa-bb") as attempt:
        (attempt.folder / "public").mkdir()
        (attempt.folder / "public" / "report.html").write_text("<html>")
        page = store.seal(attempt, {"name": "report", "key": "aa-bb", "declared": {}, "needs": {}, "note": ""})
    for number in range(1, 13):
        entry = manifest.begin(f"2026-11-{number:02}T10:00:00", f"precflow +recipe=x{' target.dtype=float16' * (number == 2)}")
        made = {"report": page.key} if number == 2 else {}
        manifest.update(replace(entry, verdict="aligned" * (number < 12), exit_code=0 if number < 12 else -1, instances=made))
    return folder


def test_runs_are_listed_with_what_was_different(history, capsys):
    assert cli.main(["ls", "runs"]) == 0
    shown = capsys.readouterr().out
    assert "runs/x@12   2026-11-12 10:00   still under way, or was killed" in shown
    assert "runs/x@2 " not in shown
    assert "and 2 earlier" in shown
    assert cli.main(["ls", "runs", "x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[1].split() == ["runs/x@2", "2026-11-02", "10:00", "aligned", "target.dtype=float16"]
    assert lines[2].split()[-1] == "aligned"
    assert cli.main(["ls", "runs", str(history), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["outcome"] == "aligned"
    assert cli.main(["ls", "runs", "nowhere"]) == 2


@pytest.mark.usefixtures("history")
def test_the_report_of_one_run_is_opened(capsys):
    for typed in ("runs/x@2", "x@2"):
        assert cli.main(["open", typed, "--print"]) == 0
        assert capsys.readouterr().out.strip().endswith("public/report.html")
    for typed, said in (("x@1", "x@1 wrote no page"), ("x@99", "has no run 99"), ("y@1", "no run folder at y")):
        assert cli.main(["open", typed]) == 2
        assert said in capsys.readouterr().err

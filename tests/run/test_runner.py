"""From a composed recipe to an outcome: kept stages, the history, the public folder, the closing words."""

import contextlib
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from precflow.config.composition import compose
from precflow.errors import ConfigError, DumpError, StoreError
from precflow.run import pruning, runner
from precflow.run.find_runs import find_run
from precflow.run.plan import build_plan
from precflow.run.runner import run
from precflow.run.store import Sealed
from precflow.sides import launch
from precflow.verbs.open import find_newest


def history(tmp_path):
    return json.loads((tmp_path / "runs" / "compare_dumps" / "run.json").read_text())["runs"]


def test_equal_dumps_are_aligned(composed, tmp_path, capsys):
    outcome = run(composed(), command="precflow +recipe=compare_dumps")
    assert (outcome.verdict, outcome.exit_code) == ("aligned", 0)
    assert "ALIGNED" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "runs" / "compare_dumps" / "public").iterdir()} == {
        "report.html",
        "report.md",
        "result.json",
        "junit.xml",
    }


def test_a_fault_is_misaligned_and_named(composed, capsys):
    outcome = run(composed(factor=1.01), command="")
    assert (outcome.verdict, outcome.exit_code) == ("misaligned", 1)
    assert outcome.furthest.endswith(" times its limit")
    assert "fc2 / linear" in capsys.readouterr().err


def test_a_misspelt_variable_is_told_before_any_work(composed, capsys):
    run(composed("target.variables.HCCL_DETERMINISITIC=true"), command="")
    said = capsys.readouterr().err
    assert said.index("HCCL_DETERMINISITIC") < said.index("compare")


def test_a_second_run_keeps_everything(composed, tmp_path):
    run(composed(), command="one")
    run(composed(), command="two")
    first, second = history(tmp_path)
    assert set(first["states"].values()) == {"run"}
    assert set(second["states"].values()) == {"kept"}
    assert first["instances"] == second["instances"]
    assert (second["number"], second["command"], second["verdict"], second["exit_code"]) == (2, "two", "aligned", 0)


def test_a_run_that_keeps_everything_tells_its_own_seconds_and_whose_results_it_shows(composed, capsys, monkeypatch):
    run(composed(), command="one")
    assert "nothing was computed" not in capsys.readouterr().err
    moments = itertools.chain([1000.0], itertools.repeat(1012.0))
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(moments))
    run(composed(), command="two")
    lines = capsys.readouterr().err.splitlines()
    title = next(line for line in lines if line.startswith(" compare_dumps"))
    assert title.endswith("· 12 s")
    assert lines[lines.index(title) + 1] == "   nothing was computed: everything is kept from run 1"


def test_open_is_not_offered_where_no_page_was_made(composed, capsys):
    run(composed("report.formats=[markdown]"), command="")
    said = capsys.readouterr().err
    assert "runs/compare_dumps/public" in said
    assert "precflow open" not in said


def test_going_back_keeps_everything_too(composed, tmp_path):
    run(composed(), command="")
    assert run(composed("tolerance.cosine_similarity=0.9"), command="").exit_code == 0
    run(composed(), command="")
    assert set(history(tmp_path)[-1]["states"].values()) == {"kept"}


def test_a_run_that_fails_is_in_the_history_with_exit_2(composed, tmp_path):
    with pytest.raises(ConfigError, match="never made") as refused:
        run(composed("stages=[compare]"), command="")
    assert "stages=[dump,compare]" in str(refused.value)
    assert history(tmp_path)[-1]["exit_code"] == 2


def test_chosen_stages_work_on_what_is_there(composed, tmp_path, capsys):
    """``stages=[judge]`` is the judgement of the whole run: with its dumps, and whatever else was measured."""
    run(composed(), command="")
    whole = history(tmp_path)[-1]["instances"]
    capsys.readouterr()
    assert run(composed("stages=[judge]"), command="").exit_code == 0
    said = capsys.readouterr().err
    assert "ALIGNED   2 of 2 records compared" in said
    assert "no report" in said
    again = history(tmp_path)[-1]
    assert again["instances"].items() - whole.items() <= {("judge", again["instances"]["judge"])}  # it says what was left out
    assert {name for name, state in again["states"].items() if state == "run"} <= {"judge"}
    assert "report" not in again["instances"]
    run(composed("stages=[judge]", "tolerance.cosine_similarity=0.9"), command="")
    other = history(tmp_path)[-1]
    assert {name for name, state in other["states"].items() if state == "run"} == {"judge"}
    assert run(composed("stages=[judge,report]", "tolerance.cosine_similarity=0.8"), command="").report is not None


def test_a_run_has_the_folder_of_its_name(composed, tmp_path, capsys):
    command = "precflow +recipe=compare_dumps name=warm_start"
    assert run(composed("name=warm_start"), command=command).folder == Path("runs/warm_start")
    assert " warm_start (compare_dumps) · " in capsys.readouterr().err
    assert run(composed("name=warm_start"), command=command).run == 2  # the next number of that name
    assert not (tmp_path / "runs" / "compare_dumps").exists()
    assert find_run("warm_start@1").folder == Path("runs/warm_start")


def test_a_name_belongs_to_one_recipe(composed):
    run(composed("name=warm_start"), command="precflow +recipe=minilm name=warm_start")
    with pytest.raises(ConfigError, match=r"runs/warm_start has runs of the recipe minilm, .* compare_dumps\n.*name=warm"):
        run(composed("name=warm_start"), command="")
    with pytest.raises(ConfigError, match="has runs of the recipe minilm"):
        build_plan(composed("name=warm_start"))


@pytest.mark.parametrize("typed", ["[minilm,compare_dumps]", "[minilm, compare_dumps]", "[minilm,team/compare_dumps.yaml]"])
def test_several_recipes_are_one_name(composed, typed):
    run(composed("name=both"), command=f"precflow '+recipe={typed}' name=both")
    again = composed("name=both")
    again = replace(again, config=replace(again.config, recipe="minilm+compare_dumps"))
    assert run(again, command=f"precflow '+recipe={typed}' name=both").run == 2
    with pytest.raises(ConfigError, match=r"has runs of the recipe minilm\+compare_dumps, and this is compare_dumps"):
        build_plan(composed("name=both"))


def test_each_of_several_jobs_has_a_folder_with_its_report(composed, tmp_path):
    reports = [runner.publish_job(run(composed(f"tolerance.cosine_similarity={least}"), command="")) for least in (0.9, 0.8)]
    assert reports == [Path(f"runs/compare_dumps/jobs/{number}/report.html") for number in (1, 2)]
    assert "0.9" in (tmp_path / reports[0].parent / "public" / "report.md").read_text()
    assert "0.8" in (tmp_path / reports[1].parent / "public" / "report.md").read_text()
    assert find_newest(tmp_path / "runs") == tmp_path / "runs/compare_dumps/report.html"
    assert runner.publish_job(run(composed("stages=[judge]"), command="")) is None


def test_chosen_stages_from_nothing_add_what_they_need(composed, tmp_path, capsys):
    run(composed("stages=[dump,compare]"), command="")
    assert list(history(tmp_path)[-1]["instances"]) == ["dump.reference", "dump.target", "determinism", "compare"]
    said = capsys.readouterr().err
    assert "compare_dumps   nothing was judged" in said
    assert "precflow +recipe=compare_dumps reference.dump=" in said.split("next")[1]
    assert "stages=" not in said.split("next")[1]
    assert run(composed("stages=[report]"), command="").verdict == "aligned"


def test_a_run_that_fails_names_what_it_made(composed, tmp_path, monkeypatch):
    make = runner._make

    def fail_at_judge(step, *rest):
        if step.stage.name == "judge":
            raise StoreError("no more")
        return make(step, *rest)

    monkeypatch.setattr(runner, "_make", fail_at_judge)
    with pytest.raises(StoreError):
        run(composed(), command="")
    assert {"dump.reference", "dump.target", "compare"} <= set(history(tmp_path)[-1]["instances"])


def test_a_run_under_way_names_what_it_made(composed, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "precflow.run.runner._close", lambda *_, **__: seen.append(history(tmp_path)[-1]) or runner.Outcome(None, 0)
    )
    run(composed(), command="")
    assert seen[0]["exit_code"] == -1
    assert "compare" in seen[0]["instances"]


def test_the_last_run_needs_nothing_that_prune_takes(composed, tmp_path):
    for limit in ("0.9", "0.99", "0.999"):
        run(composed(f"tolerance.cosine_similarity={limit}"), command="")
    (found,) = pruning.find_prunable([tmp_path / "runs" / "compare_dumps"], [], pruning.PruneRequest(runs=1))
    assert {rest.name.partition("-")[0] for rest in found.goes} >= {"judge", "report"}
    assert [why for _, why in pruning.prune(found, found) if why] == []
    run(composed("tolerance.cosine_similarity=0.999"), command="")
    assert set(history(tmp_path)[-1]["states"].values()) == {"kept"}


def test_a_subset_of_stages_has_no_verdict(composed):
    outcome = run(composed("stages=[dump,determinism]"), command="")
    assert (outcome.verdict, outcome.exit_code) == (None, 0)


def test_in_ci_the_verdict_is_the_last_line(composed, capsys):
    run(composed("output=ci"), command="")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("precflow compare_dumps verdict=aligned")
    assert last.isascii()


def test_a_run_folder_that_cannot_be_made_is_said(composed, tmp_path):
    ready = composed(f"runs={tmp_path / 'file'}")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        run(ready, command="")


def test_a_damaged_artifact_is_made_again(composed, tmp_path):
    run(composed(), command="")
    folder = next((tmp_path / "runs" / "compare_dumps" / "store").glob("compare-*"))
    (folder / "measures.jsonl").write_text("{")
    assert run(composed(), command="").exit_code == 0
    assert history(tmp_path)[-1]["states"]["compare"] == "run"


def test_a_reader_who_leaves_does_not_make_it_aligned(composed, tmp_path, warm_server):
    """What an interpreter then does at its own end is in ``tests/test_cli.py``."""
    composed(factor=1.5)
    given = [f"{side}.dump={tmp_path / 'dumps' / side}" for side in ("reference", "target")]
    reading, writing = os.pipe()
    os.close(reading)
    words, environment = ["+recipe=compare_dumps", *given], dict(os.environ)
    started = warm_server.popen(words, cwd=tmp_path, env=environment, out=writing, err=writing)
    os.close(writing)
    assert started.wait(60) == 1
    assert history(tmp_path)[-1]["verdict"] == "misaligned"


def test_a_run_that_fails_leaves_no_older_verdict_behind(composed, tmp_path):
    run(composed(), command="")
    (tmp_path / "dumps" / "target" / "dump.json").write_text("{}")
    with pytest.raises(DumpError):
        run(composed(), command="")
    folder = tmp_path / "runs" / "compare_dumps"
    assert not (folder / "report.html").exists()
    assert list((folder / "public").iterdir()) == []


@pytest.mark.slow
def test_facts_and_dump_of_a_side_come_from_one_process_and_nobody_is_left(clean, tmp_path, monkeypatch):
    started, start = [], launch._start
    monkeypatch.setattr(launch, "_start", lambda *words, **options: started.append(start(*words, **options)) or started[-1])
    monkeypatch.setenv("PRECFLOW_TRUST", "small")
    build = "def build(): return torch.nn.Linear(2, 2)"
    (tmp_path / "small.py").write_text(f"import torch\n{build}\ndef inputs(): return {{'input': torch.ones(1, 2)}}\n")
    words = ["workload.model._target_=small.build", "workload.inputs._target_=small.inputs", "target.device=cpu"]
    outcome = run(compose(["+recipe=minilm", "reference.device=cpu", *words]), command="")
    assert outcome.verdict == "aligned"
    assert len(started) == 2
    assert all(agent.process.returncode is not None for agent in started)
    run(compose(["+recipe=minilm", "reference.device=cpu", "stages=[environment]", "target.dtype=float16", *words]), command="")
    assert all(agent.process.returncode is not None for agent in started)


@pytest.mark.parametrize(
    ("size", "damaged", "said"),
    [(12e6, False, ["12 MB, from the store"]), (9e6, False, []), (9e6, True, ["9 MB, from the store"])],
)
def test_a_download_that_takes_time_or_is_not_whole_has_a_line(tmp_path, size, damaged, said):
    there = Sealed(
        "dump.reference", "abc", tmp_path, "", bytes=int(size), note="from the store", damaged=damaged, upload="s3://b/x"
    )
    where = SimpleNamespace(bring=lambda sealed, show: sealed)
    lines = []
    tell = SimpleNamespace(
        working=lambda *_: contextlib.nullcontext(),
        done=lambda stage, side, state, _, note: lines.append((stage, side, state, note)),
    )
    assert runner._bring(there, where, tell) == there
    assert lines == [("download", "reference", "run", note) for note in said]

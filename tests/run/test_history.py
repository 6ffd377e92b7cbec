"""The history of a run folder: what is kept of each run, that prune leaves it, and what the verb shows of it."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest

import precflow
from precflow import cli
from precflow.run import history as histories
from precflow.run.history import read_history
from precflow.run.manifest import Manifest

pytestmark = pytest.mark.xdist_group("two runs")


@pytest.fixture
def runs(two_runs, tmp_path, monkeypatch):
    """Work on a copy of a faulty run, one without the fault and with another limit, and one without an end."""
    folder = tmp_path / "runs" / "compare_dumps"
    shutil.copytree(two_runs / "runs" / "compare_dumps", folder, ignore=shutil.ignore_patterns(histories.FOLDER))
    monkeypatch.chdir(tmp_path)
    Manifest(folder).begin("2030-01-01T00:00", "precflow killed")
    return folder


def plain(capsys):
    assert cli.main(["history", "compare_dumps", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["runs"]


def test_each_run_says_what_changed_and_what_came_of_it(runs, capsys):
    first, second, third = plain(capsys)
    assert (first["outcome"], second["outcome"]) == ("misaligned", "aligned")
    assert (third["outcome"], third["summary"]) == ("still under way, or was killed", None)
    before, after = first["summary"], second["summary"]
    assert (before["before"], before["counts"], before["start"]) == (0, {"pass": 1, "fail": 1}, "fc2 / linear")
    assert before["worst"]["name"] == "fc2 / linear"
    assert (after["before"], after["better"], after["worse"], after["same"]) == (1, 1, 0, 1)
    assert [(one["name"], one["after"]) for one in after["changes"]] == [("tolerance.cosine_similarity", "0.9")]
    assert after["notes"] == ["target: another dump was given, or it was recorded again"]
    assert after["modules"] == {"fc1": 0, "fc2": 0}
    assert cli.main(["history", "compare_dumps"]) == 0
    shown = capsys.readouterr().out
    assert "tolerance.cosine_similarity (unset) -> 0.9" in shown
    assert "   better  fc2 / linear   relative_l2 7.68e-3 -> 0" in shown


def test_what_is_deleted_from_the_store_stays_in_the_history(runs, capsys, monkeypatch):
    before = plain(capsys)
    shutil.rmtree(runs / histories.FOLDER)  # nobody had asked for the history
    assert cli.main(["prune", "compare_dumps", "--runs", "1", "--yes"]) == 0
    capsys.readouterr()
    with pytest.raises(precflow.PrecflowError):
        precflow.read("compare_dumps@1")
    monkeypatch.setattr(histories, "read_results", lambda run: pytest.fail(f"{run.name} is read again"))
    assert plain(capsys) == before


def test_results_that_are_gone_without_a_summary_are_said_to_be(runs, capsys):
    for judged in (runs / "store").glob("judge-*"):
        shutil.rmtree(judged)
    first, second, _ = plain(capsys)
    assert first["outcome"] == "misaligned"
    assert first["summary"] is None
    assert "it was deleted" in second["why"]
    assert cli.main(["history", "compare_dumps", "--page", "page.html"]) == 0
    assert "it was deleted" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": 1}', "of another run"])
def test_a_summary_that_is_none_of_this_run_is_made_again(runs, capsys, content):
    before = plain(capsys)
    file = runs / histories.FOLDER / "1.json"
    whole = file.read_bytes()
    other = whole.replace(b'"started": "20', b'"started": "19')
    file.write_bytes(other if isinstance(content, str) else content)
    assert plain(capsys) == before
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_has_a_history_too(runs, capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(histories, "write_bytes", refuse)
    assert [run["summary"] is None for run in plain(capsys)] == [False, False, True]


def test_tables_of_pandas(runs):
    history = precflow.history(runs)
    table = history.frame()
    assert table["verdict"].tolist() == ["misaligned", "aligned", ""]
    assert table["failed"].tolist()[:2] == [1, 0]
    assert table.loc[0, "ratio"] > 1
    assert pd.isna(table.loc[2, "failed"])
    records = history.records()
    pivot = records.pivot_table(index="name", columns="run", values="value")
    assert pivot.loc["fc2 / linear", 1] > pivot.loc["fc2 / linear", 2] == 0
    assert records.dtypes["value"] == "float64"


def test_only_the_newest_are_shown_unless_all_are_asked_for(runs, capsys):
    assert cli.main(["history", "compare_dumps", "--last", "2"]) == 0
    shown = capsys.readouterr().out
    assert "@1 " not in shown
    assert "1 earlier" in shown
    assert [row.entry.number for row in read_history("compare_dumps", 0).rows] == [1, 2, 3]


def test_the_page_has_a_picture_of_each_module_and_nothing_that_loads(runs, capsys):
    assert cli.main(["history", "compare_dumps", "--page", "new/page.html"]) == 0
    page = Path("new/page.html").read_text(encoding="utf-8")
    for title in ("Failing records", "Modules", "Records", "fc2 / linear", "cosine_similarity"):
        assert title in page.replace("<wbr>", "")
    assert page.count('<svg viewBox="0 0 220 92"') == 6  # the whole, failing records, two modules, two records
    assert " style=" not in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nowhere"], "no run folder at nowhere"), (["compare_dumps", "--last", "x"], "expected how many runs"), ([], "NAME")],
)
def test_what_cannot_be_shown(runs, capsys, words, said):
    try:
        code = cli.main(["history", *words])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_number_that_is_none_is_kept_as_none():
    state = histories.RecordState("nonfinite", "relative_l2", math.nan, math.nan, math.nan, math.inf)
    assert histories._make_point("x", state) == histories.RecordPoint("x", "nonfinite", "relative_l2", None, None)


def test_a_notebook_about_a_run_shows_its_history(runs, tmp_path, monkeypatch):
    assert cli.main(["notebook", "compare_dumps@1", "--output", "notes/run.ipynb"]) == 0
    names = {}
    monkeypatch.chdir(tmp_path / "notes")
    for cell in json.loads(Path("run.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["result"].verdict == "misaligned"
    assert names["history"].frame()["run"].tolist() == [1, 2, 3]

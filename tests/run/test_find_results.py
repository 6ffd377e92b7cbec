"""Results read again: everything that tells the numbers of a run tells the same ones."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from page_columns import Columns

import precflow
from precflow import numbers
from precflow.errors import StoreError
from precflow.report.highlights import list_metrics
from precflow.run.find_results import read_result
from precflow.run.runner import run

_kept: dict[str, str] = {}  # what the one run of this file has left, and what stood on the screen


@pytest.fixture
def ended(composed, capsys, tmp_path, tmp_path_factory):
    """Have two dumps compared whose second operator differs; return what stands on the screen. It runs once for all tests."""
    if not _kept:
        assert run(composed(factor=1.5), command="precflow +recipe=compare_dumps").exit_code == 1
        folder = tmp_path_factory.mktemp("kept") / "runs"
        _kept.update(screen=capsys.readouterr().err, folder=str(shutil.copytree(tmp_path / "runs", folder)))
    shutil.copytree(_kept["folder"], tmp_path / "runs", dirs_exist_ok=True)
    return _kept["screen"]


def test_frame_csv_json_page_and_markdown_have_the_same_numbers(ended):
    folder = Path("runs/compare_dumps")
    table = precflow.read("compare_dumps").frame()
    metrics = list(list_metrics(read_result("compare_dumps")))
    written = pd.read_csv(folder / "result.csv")
    assert len(table) == len(written) == 2
    assert list(table) == list(written)
    pd.testing.assert_frame_equal(table[[*metrics, "value", "limit", "ratio"]], written[[*metrics, "value", "limit", "ratio"]])
    assert table["record"].tolist() == written["record"].tolist()
    assert table["status"].astype(str).tolist() == written["status"].tolist()

    document = json.loads((folder / "public/result.json").read_text(encoding="utf-8"))
    page = Columns(re.search(r'id="data">(.*?)</script>', (folder / "report.html").read_text(encoding="utf-8"))[1])
    records = page.texts(page.head["texts"]["record"])
    shown_metrics = {name: page.numbers(of["numbers"]) for name, of in page.head["metrics"].items()}
    markdown = (folder / "public/report.md").read_text(encoding="utf-8")
    for number, row in enumerate(table.to_dict("records")):
        said = document["rows"][number]
        assert (said["record"], said["status"], said["role"]) == (row["record"], row["status"], row["role"])
        assert records[number] == row["record"]
        for metric in document["columns"]:
            assert said.get("metrics", {}).get(metric, math.nan) == pytest.approx(row[metric], rel=1e-5, nan_ok=True)
            shown = shown_metrics[metric][number]
            assert (math.nan if shown is None else shown) == pytest.approx(row[metric], rel=1e-3, nan_ok=True)
        if row["status"] == "fail":
            line = next(line for line in markdown.splitlines() if line.startswith(f"| `{row['name']}` |"))
            for text in (row["metric"], numbers.number(row["value"]), numbers.number(row["limit"])):
                assert text in line
            assert said["ratio"] == pytest.approx(row["ratio"], rel=1e-5)
    failed = table[table["status"] == "fail"]
    assert f"{len(failed)} failed" in repr(precflow.read("compare_dumps"))
    assert document["verdict"]["counts"]["fail"] == len(failed)
    worst = failed.loc[failed["ratio"].idxmax()]
    assert f"{worst['metric']} {numbers.number(worst['value'])}" in ended


def test_a_file_says_what_its_run_says_in_fewer_digits(ended):
    whole, kept = precflow.read("compare_dumps@1"), precflow.read("runs/compare_dumps/public/result.json")
    assert str(kept) == str(whole)
    assert kept.verdict == whole.verdict == "misaligned"
    assert kept.start == whole.start
    pd.testing.assert_frame_equal(kept.findings_frame(), whole.findings_frame())
    pd.testing.assert_frame_equal(kept.groups_frame(), whole.groups_frame(), rtol=1e-5)
    columns = ["record", "status", "module", "operator", "phase", "step", "relative_l2", "ratio", "equal"]
    pd.testing.assert_frame_equal(kept.frame()[columns], whole.frame()[columns], rtol=1e-5)
    for place in ("runs/compare_dumps/public", "public"):  # the folder as a build server keeps it
        if place == "public":
            Path("runs/compare_dumps/public").rename("public")
        assert repr(precflow.read(place)) == repr(kept)


def test_one_line_stands_for_a_result_and_a_dozen_in_a_notebook(ended):
    result = precflow.read("compare_dumps")
    assert "\n" not in repr(result)
    assert len(repr(result)) < 200
    assert result.start in repr(result)
    shown = result._repr_html_()
    assert 5 < len(shown.split("\n")) <= 12
    assert shown.count("<tr>") == shown.count("</tr>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is no whole result"),
        (lambda text: "", "is no whole result"),
        (lambda text: "{}", "is no result of precflow"),
        (lambda text: "[1]", "is no result of precflow"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "has schema 2, and precflow .* reads schema 1"),
        (lambda text: text.replace('"rows":', '"lines":'), "is no whole result: it has no 'rows'"),
        (lambda text: re.sub(r'"ratio":[^,]+,', '"ratio":"much",', text), "is no result as precflow writes it"),
        (
            lambda text: text.replace('"record":"', '"record":"not a record","_":"', 1),
            "is no result as precflow writes it: not a record identity",
        ),
    ],
)
def test_a_file_that_is_no_whole_result_is_refused_with_its_name(ended, change, message):
    path = Path("runs/compare_dumps/public/result.json")
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(StoreError, match=f"result.json {message}"):
        precflow.read(path)


def test_what_a_newer_precflow_adds_is_passed_over(ended):
    path = Path("runs/compare_dumps/public/result.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["groups"]  # as one that is older than this key
    path.write_text(json.dumps(document | {"new": 1}), encoding="utf-8")
    assert precflow.read(path).verdict == "misaligned"


def test_what_is_no_result_is_explained(ended, composed, tmp_path):
    with pytest.raises(StoreError, match=r"no run folder at compare_dump\. Did you mean +compare_dumps"):
        precflow.read("compare_dump")
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreError, match=r"other holds no run and no result\.json"):
        precflow.read(tmp_path / "other")
    run(composed("stages=[environment]", factor=1.5), command="precflow")
    with pytest.raises(StoreError, match="compare_dumps@2 has no verdict: it judged nothing"):
        precflow.read("compare_dumps")


def test_values_and_what_is_empty_have_tables_too():
    nothing = precflow.compare([], [])
    assert nothing.frame().empty
    assert nothing.findings_frame().empty
    assert nothing.curves().empty
    assert nothing.groups_frame().empty
    assert repr(nothing) == "<precflow.Comparison: inconclusive, 0 records, 0 failed>"
    table = precflow.compare({"a": [1.0, math.nan], "b": 1, "c": [1.0]}, {"a": [1.5, math.nan], "b": 2}).frame()
    assert table["record"].tolist() == ["a", "b", "c"]
    assert table["status"].tolist() == ["fail", "fail", "unpaired_reference"]
    assert table["max_abs_error"].tolist()[:2] == [0.5, 1.0]
    assert math.isnan(table["max_abs_error"][2])
    assert table["reference_dtype"].tolist() == ["float64", "int64", "float64"]
    assert table.attrs["verdict"] == "misaligned"


def test_the_table_of_a_run_of_curves_alone_has_their_steps(tmp_path, monkeypatch):
    from precflow.config.composition import compose

    monkeypatch.chdir(tmp_path)
    for side, factor in (("gpu", 1.0), ("npu", 1.5)):
        losses = {"step": [1, 2, 3], "loss": [factor * loss for loss in (3.0, 2.0, 1.0)]}
        (tmp_path / f"{side}.json").write_text(json.dumps(losses), encoding="utf-8")
    words = ["+recipe=loss_curves", "reference.log=gpu.json", "target.log=npu.json", "curves.loss.max_rel_error=1%"]
    assert run(compose(words), command="precflow").exit_code == 1
    result = precflow.read("loss_curves")
    assert result.curves()["relative"].tolist() == [0.5, 0.5, 0.5]
    with Path("runs/loss_curves/result.csv").open(encoding="utf-8") as file:
        assert [row["target"] for row in csv.DictReader(file)] == ["4.5", "3.0", "1.5"]
    assert result.frame().empty
    assert "curve loss misaligned" in repr(result)
    pd.testing.assert_frame_equal(precflow.read("runs/loss_curves/public").curves(), result.curves())

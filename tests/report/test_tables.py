import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from precflow.errors import MissingExtraError
from precflow.report import tables
from precflow.report.highlights import list_metrics


def read(model, folder):
    return pd.read_csv(tables.write(model, folder, ["csv"])[0], keep_default_na=False, na_values=[""])


def test_every_record_and_every_metric(misaligned, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PIECE", 50)  # written in pieces, and one table all the same
    table = read(misaligned, tmp_path)
    assert len(table) == len(misaligned.rows) > 250
    for row, made in zip(table.to_dict("records"), misaligned.rows, strict=True):
        assert (row["record"], row["status"], row["role"]) == (made.measure.record, made.judged.status, made.role)
        assert {name: row[name] for name in made.measure.metrics} == made.measure.metrics
        assert row["reference_shape"] == "3x77x768"
    moving = table[table["name"].str.endswith("/ view")]
    assert moving[["relative_l2", "limit"]].isna().all(axis=None)


@pytest.mark.parametrize("name", ["misaligned", "nasty", "empty", "estimated", "undecided"])
def test_the_file_is_the_one_that_pandas_would_write(name, request, tmp_path):
    model = request.getfixturevalue(name)
    (path,) = tables.write(model, tmp_path, ["csv"])
    frame = tables.make_safe(pd.concat(list(tables._cut(model)), ignore_index=True))
    assert path.read_text(encoding="utf-8") == frame.to_csv(index=False, lineterminator="\n")


def test_the_file_of_every_run_takes_no_pandas(misaligned, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # importing it fails
    monkeypatch.delitem(sys.modules, "precflow.report.frames", raising=False)
    tables.write(misaligned, tmp_path, ["csv"])
    assert (tmp_path / "result.csv").stat().st_size > 10_000


def test_nasty_names_stay_cells_and_no_formula(nasty, tmp_path):
    table = read(nasty, tmp_path)
    assert len(table) == len(nasty.rows)
    texts = (tmp_path / "result.csv").read_text(encoding="utf-8")
    assert "\x1b" not in texts
    assert np.isinf(table["relative_l2"]).any()
    assert table["relative_l2"].isna().any()


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_a_formula_is_defused_and_a_number_is_none(misaligned, tmp_path, first):
    row = misaligned.rows[0]
    evil = replace(
        row,
        measure=replace(row.measure, name="-3", operator=f"{first}cmd|'/c calc'!A1", pairing="sequence"),
        judged=replace(row.judged, reason=f"{first}1+1"),
    )
    made = read(replace(misaligned, rows=(evil,)), tmp_path).iloc[0]
    assert (made["name"], made["pairing"]) == (-3, "sequence")
    assert (made["operator"], made["reason"]) == (f"'{first}cmd|'/c calc'!A1", f"'{first}1+1")


def test_nothing_compared_is_a_head_alone(empty, tmp_path):
    table = read(empty, tmp_path)
    assert table.empty
    assert list(table)[:4] == ["record", "name", "level", "phase"]


@pytest.mark.parametrize(("name", "library", "extra"), [("xlsx", "openpyxl", "excel"), ("parquet", "pyarrow", "parquet")])
def test_a_format_without_its_library_names_the_extra(misaligned, tmp_path, monkeypatch, name, library, extra):
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"{library} .*\n   pip install 'precflow\[{extra}\]'"):
        tables.write(misaligned, tmp_path, ["csv", name])
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(importlib.util.find_spec("openpyxl") is None, reason="needs openpyxl")
def test_a_workbook_has_the_same_numbers(nasty, misaligned, tmp_path):
    tables.write(misaligned, tmp_path, ["csv", "xlsx"])
    sheets = pd.read_excel(tmp_path / "result.xlsx", sheet_name=None)
    assert list(sheets) == ["records", "findings", "groups", "curves"]
    metrics = list(list_metrics(misaligned))
    pd.testing.assert_frame_equal(sheets["records"][metrics], pd.read_csv(tmp_path / "result.csv")[metrics])
    assert list(sheets["findings"]["rule"]) == ["PF214", "PF102"]
    tables.write(nasty, tmp_path, ["xlsx"])  # letters that a workbook cannot hold are escapes


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow")
def test_parquet_keeps_types(nasty, misaligned, tmp_path):
    tables.write(misaligned, tmp_path, ["csv", "parquet"])
    table = pd.read_parquet(tmp_path / "result.parquet")
    assert table["status"].dtype == "category"
    metrics = list(list_metrics(misaligned))
    pd.testing.assert_frame_equal(table[metrics], pd.read_csv(tmp_path / "result.csv")[metrics])
    tables.write(nasty, tmp_path, ["parquet"])

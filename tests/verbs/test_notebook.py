"""A notebook that runs: its form, its cells one after the other, and names that try to break out."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import nbformat
import pytest

from precflow import cli
from precflow.report import notebook, result_json
from precflow.report.groups import group_rows

_SPEC = importlib.util.spec_from_file_location("report_models", Path(__file__).parents[1] / "report" / "conftest.py")
models = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(models)


def run_cells(file, monkeypatch):
    """Run a notebook as Jupyter does, in its own folder; return what each code cell shows."""
    read = nbformat.read(file, as_version=4)
    nbformat.validate(read)
    monkeypatch.chdir(file.parent)
    names, shown = {}, []
    for cell in read.cells:
        if cell.cell_type == "code":
            parts = ast.parse(cell.source)
            last = parts.body.pop() if isinstance(parts.body[-1], ast.Expr) else None
            exec(compile(parts, "cell", "exec"), names)
            shown.append(last and eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return shown


@pytest.fixture
def result(tmp_path, monkeypatch):
    """Return a function that writes a result and works beside it."""
    monkeypatch.chdir(tmp_path)

    def write(model):
        (tmp_path / "public").mkdir()
        (tmp_path / "public" / "result.json").write_text(result_json.render(model), encoding="utf-8")

    return write


def test_every_cell_of_it_runs(result, tmp_path, capsys, monkeypatch):
    model = models.misaligned_model()
    result(models.misaligned_model(groups=group_rows(model.rows)))
    assert cli.main(["notebook", "public", "--output", "notes/mine.ipynb"]) == 0
    assert capsys.readouterr().out.strip() == "notes/mine.ipynb"
    first, findings, worst, groups, _, own = run_cells(tmp_path / "notes" / "mine.ipynb", monkeypatch)
    assert first.verdict == "misaligned"
    assert findings["rule"].tolist() == ["PF214", "PF102"]
    assert worst["status"].tolist() == ["fail"] * 20
    assert set(groups["by"]) >= {"module", "operator"}
    assert own["max"].is_monotonic_decreasing


def test_a_notebook_that_somebody_works_in_is_never_overwritten(result, tmp_path, capsys):
    result(models.aligned_model())
    (tmp_path / "public.ipynb").write_text("mine")
    assert cli.main(["notebook", "public"]) == 2
    assert "public.ipynb is there already" in capsys.readouterr().err
    assert (tmp_path / "public.ipynb").read_text() == "mine"
    assert cli.main(["notebook", "nowhere"]) == 2


@pytest.mark.parametrize("make", [models.empty_model, models.inconclusive_model])
def test_any_result_makes_cells_that_run(result, tmp_path, monkeypatch, make):
    result(make())
    assert cli.main(["notebook", "public"]) == 0
    run_cells(tmp_path / "public.ipynb", monkeypatch)


def test_a_name_stays_a_text():
    text = notebook.render(models.nasty_model(), "x'); import os; os.abort() #@3", is_run=True)
    assert "\x1b" not in text
    cells = json.loads(text)["cells"]
    (assigned,) = [line for line in cells[1]["source"] if line.startswith("RESULT")]
    assert ast.literal_eval(assigned.partition("=")[2].partition("  # ")[0].strip()) == "x'); import os; os.abort() #@3"
    texts = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    assert "<script>" in texts  # as code, which no notebook takes for markup
    assert "<script>" not in re.sub(r"(`+).*?\1", "", texts)

"""A notebook about one result: it reads the result with precflow, and shows and groups its tables.

It has code and no numbers of its own, so that it stays small and is right again when it is run again. Form: nbformat 4.5,
https://nbformat.readthedocs.io/en/latest/format_description.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from precflow.report.model import ReportModel
from precflow.report.templating import escape_code, escape_prose
from precflow.version import __version__

_SHOWN = '["name", "status", "role", "metric", "value", "limit", "ratio", "reason"]'
_READ = """\
import precflow

RESULT = {place!r}  # from the folder of this notebook; a run (runs/NAME@3), a result.json, or the folder of one

result = precflow.read(RESULT)
result"""
_FINDINGS = 'result.findings_frame()[["rule", "certainty", "title", "where", "do", "command"]]'
_WORST = f"""\
table = result.frame()
table.sort_values("ratio", ascending=False)[{_SHOWN}].head(20)"""
_GROUPS = """\
groups = result.groups_frame()
groups[groups["failed"] + groups["in_doubt"] > 0].head(40)"""
_ALONG = """\
along = table.dropna(subset=["relative_l2"]).set_index("order")["relative_l2"] if "relative_l2" in table else table["ratio"]
try:
    import matplotlib
except ModuleNotFoundError:
    print("pip install matplotlib draws this; here are the largest")
    shown = along.nlargest(10)
else:
    shown = along.replace(0, float("nan")).plot(style=".", logy=True, xlabel="order of the network", ylabel=along.name)
shown"""
_OWN = """\
known = table.dropna(subset=["ratio"])
shares = known.groupby(["phase", "operator"], observed=True)["ratio"].describe(percentiles=[0.5, 0.99])
shares.sort_values("max", ascending=False)"""
_CURVES = """\
curves = result.curves()
curves.pivot_table(index="step", columns="curve", values=["reference", "target", "relative"]).head(20)"""
_HISTORY = """\
history = precflow.history(RESULT.rpartition("@")[0])
history.frame()[["run", "started", "verdict", "failed", "ratio", "better", "worse", "changed"]]"""
_RECORDS = """\
history.records().pivot_table(index="name", columns="run", values="value", aggfunc="max").head(20)"""


def render(model: ReportModel, place: str, *, is_run: bool) -> str:
    """Return a notebook about a result.

    Args:
        model: The result.
        place: What to call it in ``precflow.read``, as seen from the folder of the notebook.
        is_run: It is a run, which has a history.
    """
    cells = [_make_cell(number, kind, text) for number, (kind, text) in enumerate(_list_cells(model, place, is_run=is_run))]
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "precflow": __version__,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, ensure_ascii=True, indent=1) + "\n"


def _list_cells(model: ReportModel, place: str, *, is_run: bool) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each cell: one of ``markdown`` and ``code``."""
    verdict = model.verdict
    start = f", starts at {escape_code(model.region.start)}" if model.region.start else ""
    reasons = "".join(f"\n- {escape_prose(reason)}" for reason in verdict.reasons)
    emulated = "\n\n**EMULATED**: shows that the recipe works, says nothing about hardware." if model.emulated else ""
    yield "markdown", f"# {escape_prose(model.recipe)}: {verdict.verdict}{start}\n{reasons}{emulated}"
    yield "code", _READ.format(place=place)
    if model.findings:
        first = model.findings[0]
        next_command = f"\n\nNext: {escape_code(first.try_it)}" if first.try_it else ""
        yield "markdown", f"## What to do\n\n{escape_prose(first.fix)}{next_command}"
        yield "code", _FINDINGS
    if model.rows:
        yield "markdown", "## The worst records\n\n`ratio` is the share of its limit that a record uses: above 1 it fails."
        yield "code", _WORST
        yield "markdown", "## Where it fails\n\nBy module, operator, element type and phase."
        yield "code", _GROUPS
        yield "markdown", "## The error along the network"
        yield "code", _ALONG
        yield "markdown", "## A grouping of your own"
        yield "code", _OWN
    if model.curves:
        yield "markdown", "## Curves"
        yield "code", _CURVES
    if is_run:
        yield "markdown", "## The runs of this recipe"
        yield "code", _HISTORY
        if model.rows:
            yield "code", _RECORDS


def _make_cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})

"""A result as tables of pandas: its records, findings, curves, and counts by module, operator, type and phase.

Every other table of a result (``result.csv``, the workbook, the counts on page and screen) is made of these, so that their
numbers are the same. This module imports pandas: import it where a table is made, never at the start of a program.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.findings import CERTAINTIES, Finding
from precflow.diagnosis.golden import GoldenRow
from precflow.metrics import find_metric
from precflow.report.columns import CATEGORIES, build_columns, escape
from precflow.report.highlights import SEVERITY
from precflow.report.model import GroupRow
from precflow.report.row import Row
from precflow.task.outcome import TaskOutcome

_UNITS: Final = {"share": "share", "value": "unit of the tensor", "ulp": "ulp", "nats": "nats", "own": "own"}
_NUMBERS: Final = ("value", "limit", "ratio", "floor", "lowest", "highest")
_EXACT: Final = (np.nan, np.nan)
_STATUS = pd.CategoricalDtype(list(SEVERITY), ordered=True)
_CERTAINTY = pd.CategoricalDtype(list(CERTAINTIES), ordered=True)


def make_record_frame(
    rows: Sequence[Row],
    metrics: Sequence[str],
    facts: Mapping[Hashable, Any] | None = None,
    golden: Mapping[str, GoldenRow] | None = None,
) -> pd.DataFrame:
    """Return one row for each record, in order of the graph; the index counts them from 0.

    A metric is a column of float64 under its own name. ``NaN`` stands where a record does not have it, or where it is not a
    number, which the status says. ``status`` is an ordered category, the worst first, so that its ``min`` is the worst.

    Args:
        rows: The records.
        metrics: Names of the metrics that become columns.
        facts: What else belongs into ``attrs``: recipe, verdict...
        golden: Identity text -> errors against a golden run; without one there are no columns of it.

    Returns:
        The table. ``attrs["units"]`` has the unit of each column of numbers.
    """
    columns = {
        name: pd.Categorical(column, dtype=_STATUS if name == "status" else None) if name in CATEGORIES else column
        for name, column in build_columns(rows, metrics, golden).items()
    }
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(rows)))
    units = dict.fromkeys(_NUMBERS, "unit of the column metric") | {"ratio": "share of the limit", "share": "share of elements"}
    frame.attrs = {**(facts or {}), "units": units | {name: _UNITS[find_metric(name).unit] for name in metrics}}
    return frame


def make_finding_frame(findings: Sequence[Finding], facts: Mapping[Hashable, Any] | None = None) -> pd.DataFrame:
    """Return one row for each finding, best first; ``certainty`` is an ordered category, and several facts are one text."""
    texts = {
        "rule": [one.rule for one in findings],
        "title": [one.title for one in findings],
        "where": [one.where for one in findings],
        "site": [one.site for one in findings],
        "do": [one.fix for one in findings],
        "change": [one.change for one in findings],
        "command": [one.try_it for one in findings],
        "evidence": ["; ".join(f"{what}: {value}" for what, value in one.evidence) for one in findings],
        "why": [one.why for one in findings],
        "ruled_out": ["; ".join(f"{rule}: {because}" for rule, because in one.against) for one in findings],
        "sources": ["; ".join(one.sources) for one in findings],
    }
    # The type is said, because of no finding pandas would make numbers.
    frame = pd.DataFrame({name: pd.Series(map(escape, column), dtype="str") for name, column in texts.items()})
    frame.insert(2, "certainty", pd.Series([one.certainty for one in findings], dtype=_CERTAINTY))
    frame.attrs = dict(facts or {})
    return frame


def make_curve_frame(curves: Sequence[CurveOutcome], facts: Mapping[Hashable, Any] | None = None) -> pd.DataFrame:
    """Return one row for each step of each curve: both numbers, their difference, and that relative to the reference.

    A long curve has the steps of its picture: the least and the largest number of each stretch of steps, and
    ``attrs["logged"]`` says how many steps each side has.
    """
    points = [(one.name, point) for one in curves for point in one.points]
    reference = _floats([point.reference for _, point in points])
    target = _floats([point.target for _, point in points])
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = target - reference
        relative = difference / np.abs(reference)
    frame = pd.DataFrame(
        {
            "curve": _categories([name for name, _ in points]),
            "step": np.array([point.step for _, point in points], np.int64),
            "reference": reference,
            "target": target,
            "difference": difference,
            "relative": relative,
        }
    )
    units = dict.fromkeys(("reference", "target", "difference"), "unit of the curve") | {"relative": "share of the reference"}
    frame.attrs = {**(facts or {}), "units": units, "logged": {one.name: dict(one.logged) for one in curves}}
    return frame


def make_task_frame(outcomes: Sequence[TaskOutcome], facts: Mapping[Hashable, Any] | None = None) -> pd.DataFrame:
    """Return one row for each sample of each task metric, and one for a metric that has none.

    ``value`` is that of the pair, ``reference`` and ``target`` are those of the sides; ``NaN`` stands for what a metric lacks.
    """
    rows = [(one, number, each) for one in outcomes for number, each in enumerate(one.each or ((),))]
    frame = pd.DataFrame(
        {
            "metric": _categories([one.name for one, _, _ in rows]),
            "kind": _categories([one.kind for one, _, _ in rows]),
            "output": _categories([escape(one.output) for one, _, _ in rows]),
            "state": _categories([one.state for one, _, _ in rows]),
            "limit": _floats([np.nan if one.limit is None else one.limit for one, _, _ in rows]),
            "unit": _categories([one.unit for one, _, _ in rows]),
            "sample": np.array([number for _, number, _ in rows], np.int64),
            "value": _floats([each[0] if len(each) == 1 else np.nan for _, _, each in rows]),
            "reference": _floats([each[0] if len(each) == 2 else np.nan for _, _, each in rows]),
            "target": _floats([each[1] if len(each) == 2 else np.nan for _, _, each in rows]),
            "reason": pd.Series([escape(one.why) for one, _, _ in rows], dtype="str"),
            "could_have_shown": pd.Series([escape(one.effect_text) for one, _, _ in rows], dtype="str"),
        }
    )
    frame.attrs = dict(facts or {})
    return frame


def make_group_frame(groups: Sequence[GroupRow], facts: Mapping[Hashable, Any] | None = None) -> pd.DataFrame:
    """Return one row for each group of records; ``worst`` and ``median`` are shares of the limit, ``NaN`` without one."""
    frame = pd.DataFrame(
        {
            "by": _categories([group.by for group in groups]),
            "name": pd.Series([escape(group.name) for group in groups], dtype="str"),
            **{
                name: np.array([getattr(group, name) for group in groups], np.int64)
                for name in ("records", "failed", "in_doubt")
            },
            "worst": _floats([np.nan if group.worst is None else group.worst for group in groups]),
            "median": _floats([np.nan if group.median is None else group.median for group in groups]),
            "record": pd.Series([escape(group.record) for group in groups], dtype="str"),
        }
    )
    frame.attrs = {**(facts or {}), "units": dict.fromkeys(("worst", "median"), "share of the limit")}
    return frame


def _categories(texts: Sequence[str]) -> pd.Categorical:
    """Return texts of which many are equal as a category; a text without letters is missing."""
    known = {text: escape(text) or None for text in set(texts)}
    return pd.Categorical([known[text] for text in texts])


def _floats(numbers: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(numbers, np.float64)

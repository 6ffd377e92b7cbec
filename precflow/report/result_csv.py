"""``result.csv``: one line for each record with its status and every metric, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from precflow.report import highlights, wording
from precflow.report.model import ReportModel

_HEAD = "record name level phase order status role metric value limit ratio standard floor".split()
_ENDS = "equal reference_dtype target_dtype reference_shape target_shape pairing reason".split()
_FORMULAS = ("=", "+", "-", "@")  # a spreadsheet computes a text that starts with one of these


def render(model: ReportModel) -> str:
    """Return the table. A missing metric is an empty cell; NaN and infinity are ``nan`` and ``inf``."""
    metrics = highlights.list_metrics(model)
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([*_HEAD, *metrics, *_ENDS])
    for row in model.rows:
        measure, judged = row.measure, row.judged
        decided = [judged.metric, *(map(repr, (judged.value, judged.limit, judged.ratio)) if judged.metric else ("", "", ""))]
        names = [measure.record, measure.name, measure.level, measure.phase, str(measure.order), judged.status, row.role]
        numbers = [repr(float(measure.metrics[metric])) if metric in measure.metrics else "" for metric in metrics]
        shapes = [
            _format_shape(measure.reference_shape, measure.reference_dtype),
            _format_shape(measure.target_shape, measure.target_dtype),
        ]
        ends = [str(int(measure.equal)), measure.reference_dtype, measure.target_dtype, *shapes]
        ends += [measure.pairing, judged.reason or measure.reason]
        floor = "" if judged.floor is None else repr(judged.floor)
        writer.writerow(
            [*map(_escape_formula, [*names, *decided, judged.standard, floor]), *numbers, *map(_escape_formula, ends)]
        )
    return target.getvalue()


def _format_shape(shape: Sequence[int], dtype: str) -> str:
    return "x".join(map(str, shape)) if dtype else ""


def _escape_formula(text: str) -> str:
    """Return a text as a cell, with an apostrophe in front if a spreadsheet would read it as a formula."""
    plain = wording.printable(text)
    # "-0.5" begins like a formula but is a number, and must stay one for pandas.
    return f"'{plain}" if plain.startswith(_FORMULAS) and not _is_number(plain) else plain


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

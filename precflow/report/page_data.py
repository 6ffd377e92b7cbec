"""The records as the page's script reads them: columns of numbers, each text once."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from precflow.metrics import METRICS
from precflow.report import chart, highlights, tree, wording
from precflow.report.model import ReportModel, Row
from precflow.report.result_json import strict

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_DIGITS = 4  # one more than is ever shown
MOST_ROWS = 24_000  # of one page; more are slow to look at, and nobody looks at them
MOST_BYTES = 2_500_000  # of a page's data; with result.json and what else is public there remain 10 MB
PACKED_FROM = 500_000  # characters; below, the page is as small and its data can be read by eye


class _Texts:
    """Texts, each kept once; a column holds their indices."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        """Return the index of a text."""
        return self._index.setdefault(wording.printable(text), len(self._index))

    def all(self) -> list[str]:
        """Return every text, in order of the indices."""
        return list(self._index)


def fitted(model: ReportModel) -> tuple[ReportModel, str]:
    """Return the model with the records that fit into a page, and the page's data; what is left out is counted in both."""
    most = MOST_ROWS
    while True:
        page = highlights.bounded(model, most)
        data = text(page, model.rows)
        if len(data) <= MOST_BYTES or len(page.rows) < 2:
            return page, data
        most = min(len(page.rows) // 2, int(0.9 * len(page.rows) * MOST_BYTES / len(data)) + 1)


def text(model: ReportModel, every: Sequence[Row] | None = None) -> str:
    """Return the data of the page: JSON that cannot end the script element around it; when long, deflated, in base64.

    The first character tells which: JSON begins with a brace, which base64 does not know.

    Args:
        model: Its rows are those of the page.
        every: Every row of the run, where the model's are not all.
    """
    plain = json.dumps(document(model, every), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(plain) < PACKED_FROM:
        return plain.translate(_ESCAPES)
    return base64.b64encode(zlib.compress(plain.encode("utf-8", "backslashreplace"), 9)).decode("ascii")


def document(model: ReportModel, every: Sequence[Row] | None = None) -> dict[str, Any]:
    """Return everything that the script needs: the records in columns, the chart's frame, the tree and the words.

    Args:
        model: Its rows are those of the page.
        every: Every row of the run, where the model's are not all: the tree and the totals are over all of them.
    """
    every = model.rows if every is None else every
    texts = _Texts()
    metrics = highlights.metrics_of(model)
    picture = chart.build(model)
    columns = {name: [texts.index(value) for value in values] for name, values in _texts(model.rows).items()}
    columns |= _numbers(model.rows)
    return {
        "shown": list(model.columns),
        "metrics": {metric: _metric(model.rows, metric) for metric in metrics},
        "columns": columns,
        "counts": _counts(model.rows),
        "details": {str(index): detail for index, row in enumerate(model.rows) if (detail := _detail(row))},
        "texts": texts.all(),
        "chart": {"metric": picture.metric, "decades": list(picture.decades), "groups": _labels(picture.groups)},
        "tree": tree.plain(tree.build(every)),
        "totals": {**Counter(row.judged.status for row in every), "introduces": sum(row.role == "introduces" for row in every)},
        "symbols": dict(wording.STATUS_SYMBOLS),
        "meanings": dict(wording.STATUS_MEANINGS),
        "roles": dict(wording.ROLE_MEANINGS),
        "severity": list(highlights.SEVERITY),
        "atLeast": sorted(name for name, metric in METRICS.items() if metric.at_least),
    }


def _texts(rows: Sequence[Row]) -> Mapping[str, list[str]]:
    """Return the columns of words."""
    measures, verdicts = [row.measure for row in rows], [row.judged for row in rows]
    return {
        "record": [measure.record for measure in measures],
        "name": [measure.name for measure in measures],
        "module": [".".join(tree.parts(measure.module)) for measure in measures],
        "phase": [measure.phase for measure in measures],
        "site": [measure.site for measure in measures],
        "targetSite": [measure.target_site for measure in measures],
        "referenceType": [measure.reference_dtype for measure in measures],
        "targetType": [measure.target_dtype for measure in measures],
        "referenceShape": [_shape(measure.reference_shape, measure.reference_dtype) for measure in measures],
        "targetShape": [_shape(measure.target_shape, measure.target_dtype) for measure in measures],
        "status": [judged.status for judged in verdicts],
        "role": [row.role for row in rows],
        "metric": [judged.metric for judged in verdicts],
        "standard": [judged.standard for judged in verdicts],
        "reason": [judged.reason or measure.reason for judged, measure in zip(verdicts, measures, strict=True)],
    }


def _numbers(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the columns of numbers."""
    return {
        "order": [row.measure.order for row in rows],
        "equal": [int(row.measure.equal) for row in rows],
        "value": [rounded(row.judged.value) for row in rows],
        "limit": [rounded(row.judged.limit) for row in rows],
        "ratio": [rounded(row.judged.ratio) for row in rows],
    }


def _metric(rows: Sequence[Row], metric: str) -> list[Any]:
    """Return one metric of every row; ``null`` where it cannot be had."""
    found = (row.measure.metrics.get(metric) for row in rows)
    return [None if value is None else rounded(value) for value in found]


def _counts(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Return each class of values with its number of elements in every row; 0 where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row.measure.counts)
    return {wording.words(name): [row.measure.counts.get(name, 0) for row in rows] for name in names}


def _detail(row: Row) -> dict[str, Any]:
    """Return what few records have: arguments that differ, and warnings."""
    measure = row.measure
    arguments = [[*map(wording.printable, (name, *pair))] for name, pair in measure.arguments.items()]
    found = {
        "arguments": arguments,
        "warnings": [wording.printable(warning) for warning in (*measure.warnings, *wording.estimated(row))],
    }
    return {name: value for name, value in found.items() if value}


def rounded(value: float) -> Any:
    """Return a number with as many digits as the page can show; whole ones as such, NaN and infinity as words.

    >>> rounded(0.0123456), rounded(3.0), rounded(1 - 1e-9), rounded(math.nan)
    (0.01235, 3, 0.999999999, 'NaN')
    """
    if not math.isfinite(value):
        return strict(value)
    if 0.99 < value < 1:
        return strict(value)
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short


def _shape(sizes: Sequence[int], dtype: str) -> str:
    return str(list(sizes)) if dtype else ""


def _labels(groups: Sequence[tuple[str, int]]) -> list[list[Any]]:
    return [[wording.printable(label), index] for label, index in groups]

"""The data of the page's script: records as columns of numbers, each text once, within a bound of bytes."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from precflow import language
from precflow.metrics import METRICS
from precflow.report import chart, highlights, tree, wording
from precflow.report.model import ReportModel, Row
from precflow.report.result_json import make_strict

# The browser ends a script element at the first "</script", even inside a JSON string; "\u003c" means the same to JSON.
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_DIGITS = 4  # one more than the page shows
MOST_ROWS = 24_000  # of one page; with more of them a browser becomes slow
MOST_BYTES = 2_500_000  # of data, so that the folder `public/`, with result.json and the rest, stays below 10 MB
PACKED_FROM = 500_000  # characters; shorter data is not compressed and can be read by eye


class _TextTable:
    """Every text of the page once; a column holds indices into it."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        """Return the index of a text, which is added if it is new."""
        return self._index.setdefault(wording.printable(text), len(self._index))

    def all(self) -> list[str]:
        """Return every text, in order of the indices."""
        return list(self._index)


def fit_into_page(model: ReportModel) -> tuple[ReportModel, str]:
    """Return the model with only the records that fit into a page, and the page's data; both count the others."""
    most = MOST_ROWS
    while True:
        page = highlights.keep_most_important(model, most)
        data = encode(page, model.rows)
        if len(data) <= MOST_BYTES or len(page.rows) < 2:
            return page, data
        # The size does not shrink in proportion to the rows (texts are shared, compression varies): aim a tenth lower, halve
        # at least, and try again.
        most = min(len(page.rows) // 2, int(0.9 * len(page.rows) * MOST_BYTES / len(data)) + 1)


def encode(model: ReportModel, every: Sequence[Row] | None = None) -> str:
    """Return the data of the page: JSON that cannot end the script element around it; if it is long, deflated, in base64.

    The first character shows which of the two it is: JSON starts with a brace, and base64 has none.

    Args:
        model: Its rows are those of the page.
        every: Every row of the run, if the model has not all of them.
    """
    plain = json.dumps(build_page_data(model, every), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(plain) < PACKED_FROM:
        return plain.translate(_ESCAPES)
    return base64.b64encode(zlib.compress(plain.encode("utf-8", "backslashreplace"), 9)).decode("ascii")


def build_page_data(model: ReportModel, every: Sequence[Row] | None = None) -> dict[str, Any]:
    """Return everything that the script needs: the records in columns, the frame of the picture, the tree, and the words.

    Args:
        model: Its rows are those of the page.
        every: Every row of the run, if the model has not all of them; the tree and the totals count all.
    """
    every = model.rows if every is None else every
    texts = _TextTable()
    picture = chart.build_chart(model)
    kinds = dict.fromkeys(kind for row in model.rows for kind in row.measure.counts)
    columns: dict[str, list[Any]] = {
        name: [texts.index(value) for value in values] for name, values in _list_texts(model.rows).items()
    }
    columns |= {
        "order": [row.measure.order for row in model.rows],
        "equal": [int(row.measure.equal) for row in model.rows],
        "value": [round_number(row.judged.value) for row in model.rows],
        "limit": [round_number(row.judged.limit) for row in model.rows],
        "ratio": [round_number(row.judged.ratio) for row in model.rows],
        "floor": [None if row.judged.floor is None else round_number(row.judged.floor) for row in model.rows],
    }
    return {
        "shown": list(model.columns),
        "metrics": {
            metric: [round_number(row.measure.metrics[metric]) if metric in row.measure.metrics else None for row in model.rows]
            for metric in highlights.list_metrics(model)
        },
        "columns": columns,
        # Kind of value (zero, NaN, mask fill...) -> its number of elements in every row.
        "counts": {wording.words(kind): [row.measure.counts.get(kind, 0) for row in model.rows] for kind in kinds},
        "details": {str(index): detail for index, row in enumerate(model.rows) if (detail := _describe_rare_facts(row))},
        "texts": texts.all(),
        "chart": {
            "metric": picture.metric,
            "decades": list(picture.decades),
            "groups": [[wording.printable(label), index] for label, index in picture.groups],
        },
        "tree": tree.flatten_tree(tree.build_tree(every)),
        "totals": {**Counter(row.judged.status for row in every), "introduces": sum(row.role == "introduces" for row in every)},
        "symbols": dict(wording.STATUS_SYMBOLS),
        "meanings": dict(wording.STATUS_MEANINGS),
        "colours": dict(wording.STATUS_COLOURS),
        "roles": dict(wording.ROLE_MEANINGS),
        "severity": list(highlights.SEVERITY),
        "atLeast": sorted(name for name, metric in METRICS.items() if metric.at_least),
        **({"words": _list_words(model)} if model.language != language.ENGLISH else {}),
    }


def _list_words(model: ReportModel) -> dict[str, str]:
    """Return English -> Chinese of what the script shows: its own texts, with places for values, and those of the data."""
    own = language.read_entries(language.CHINESE, script=True)
    catalogue = language.load(language.CHINESE)
    assert catalogue is not None
    shown = [
        *(row.judged.reason or row.measure.reason for row in model.rows),
        *wording.STATUS_MEANINGS.values(),
        *wording.ROLE_MEANINGS.values(),
        *(warning for row in model.rows for warning in _describe_rare_facts(row).get("warnings", ())),
    ]
    translated = {text: catalogue.translate(text) for text in shown}
    return own | {text: said for text, said in translated.items() if said != text}


def _list_texts(rows: Sequence[Row]) -> Mapping[str, list[str]]:
    """Return the columns of text."""
    measures, verdicts = [row.measure for row in rows], [row.judged for row in rows]
    return {
        "record": [measure.record for measure in measures],
        "name": [measure.name for measure in measures],
        "module": [".".join(tree.split_path(measure.module)) for measure in measures],
        "phase": [measure.phase for measure in measures],
        "site": [measure.site for measure in measures],
        "targetSite": [measure.target_site for measure in measures],
        "referenceType": [measure.reference_dtype for measure in measures],
        "targetType": [measure.target_dtype for measure in measures],
        "referenceShape": [_format_shape(measure.reference_shape, measure.reference_dtype) for measure in measures],
        "targetShape": [_format_shape(measure.target_shape, measure.target_dtype) for measure in measures],
        "status": [judged.status for judged in verdicts],
        "role": [row.role for row in rows],
        "metric": [judged.metric for judged in verdicts],
        "standard": [judged.standard for judged in verdicts],
        "reason": [judged.reason or measure.reason for judged, measure in zip(verdicts, measures, strict=True)],
    }


def _describe_rare_facts(row: Row) -> dict[str, Any]:
    """Return what only few records have, and so is no column: arguments that differ, and warnings."""
    measure = row.measure
    texts = (*wording.describe_pairing(row), *measure.warnings, *wording.describe_estimate(row))
    facts = {
        "arguments": [[*map(wording.printable, (name, *pair))] for name, pair in measure.arguments.items()],
        "warnings": [wording.printable(warning) for warning in texts],
    }
    return {name: value for name, value in facts.items() if value}


def round_number(value: float) -> Any:
    """Return a number with as many digits as the page needs; whole numbers as integers, NaN and infinity as words.

    >>> round_number(0.0123456), round_number(3.0), round_number(1 - 1e-9), round_number(math.nan)
    (0.01235, 3, 0.999999999, 'NaN')
    """
    # A cosine similarity just below 1 needs more digits than an error, and make_strict keeps them.
    if not math.isfinite(value) or 0.99 < value < 1:
        return make_strict(value)
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short


def _format_shape(sizes: Sequence[int], dtype: str) -> str:
    return str(list(sizes)) if dtype else ""

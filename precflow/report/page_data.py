"""The data of the page's script: the records in columns, within a bound of bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow import language
from precflow.comparison.detail.as_json import plain
from precflow.curves.outcome import CurveOutcome
from precflow.metrics import METRICS
from precflow.report import chart, highlights, tree, wording
from precflow.report.model import ReportModel, Row
from precflow.report.packing import DIGITS, Packer

MOST_ROWS = 1_000_000  # of one page
MOST_BYTES = 2_700_000  # of data, so that a page with all that it says stays below 3 MB
SHORT, SHOWN, FULL = 0, 1, 2  # what a page has of a record: the metric that decides, the shown ones too, or everything
_SAMPLE = 8_000  # records by which the size of a page is estimated
_SPARE = 0.95  # of the room is planned for, because an estimate is none too exact
_FEW_DIGITS = 3, 2  # of the numbers of records that are not there in full, if the room is short

Levels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """How much a page has of its records, the most important first.

    Attributes:
        rows: How many records.
        shown: How many of them have all shown metrics.
        full: How many of them have everything.
        digits: Of the numbers of those that have not everything.
    """

    rows: int
    shown: int
    full: int
    digits: int = DIGITS


def fit_into_page(model: ReportModel, room: int = MOST_BYTES) -> tuple[ReportModel, str]:
    """Return the model with only the records that fit into a page, and the page's data; both count the others.

    If there is not enough room, the least important records first lose the metrics that decide nothing, then digits, and only
    then they are left out.

    Args:
        model: With all records.
        room: Bytes of data at most.
    """
    page, planned, totals = highlights.keep_most_important(model, MOST_ROWS), room, sum_up(model.rows)
    while True:
        plan = _make_plan(page, totals, planned)
        page = highlights.keep_most_important(page, plan.rows)
        data = encode(page, totals, plan)
        if len(data) <= room or len(page.rows) < 2:
            return page, data
        planned = int(0.9 * planned * room / len(data))  # more than was estimated: again, with less


def encode(model: ReportModel, totals: Mapping[str, Any] | None = None, plan: Plan | None = None) -> str:
    """Return the data of the page in base64: a head of JSON, and behind it the columns.

    Args:
        model: Its rows are those of the page.
        totals: What :func:`sum_up` says of every row of the run, if the model has not all of them.
        plan: How much of them is kept; everything by default.
    """
    packer = Packer()
    columns = _add_columns(packer, model, *_choose_levels(model.rows, plan))
    return packer.finish({**_build_head(model), **(totals or sum_up(model.rows)), **columns})


def sum_up(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a page counts over all records, even if it shows a part of them: the tree of modules, and the totals."""
    return {
        "tree": tree.flatten_tree(tree.build_tree(rows)),
        "totals": {**Counter(row.judged.status for row in rows), "introduces": sum(row.role == "introduces" for row in rows)},
    }


def _make_plan(model: ReportModel, totals: Mapping[str, Any], room: int) -> Plan:
    """Return how much of the records fits, by what a sample of them takes."""
    many = len(model.rows)
    full = _measure(model, FULL, DIGITS)
    room = int(_SPARE * room) - len(Packer().finish({**_build_head(replace(model, rows=())), **totals}))
    if many * full <= room:
        return Plan(many, many, many)
    digits, short = next(
        ((digits, size) for digits in _FEW_DIGITS if many * (size := _measure(model, SHORT, digits)) <= room),
        (_FEW_DIGITS[-1], _measure(model, SHORT, _FEW_DIGITS[-1])),
    )
    rows = max(1, min(many, int(room / short)))
    spare = max(0, room - rows * short) / 2  # half of it for records in full, half for the shown metrics of others
    in_full = min(rows, int(spare / max(full - short, 1)))
    shown = min(rows, in_full + int(spare / max(_measure(model, SHOWN, digits) - short, 1)))
    return Plan(rows, shown, in_full, digits)


def _measure(model: ReportModel, level: int, digits: int) -> float:
    """Return the bytes that one more record takes on the page, by two samples: one half as large as the other."""
    sizes = []
    size = min(_SAMPLE, len(model.rows))
    for most in (size, size // 2):
        start = (len(model.rows) - most) // 2
        rows = model.rows[start : start + most]
        packer = Packer()
        few = np.full(len(rows), level, np.int64)
        sizes.append(len(packer.finish(_add_columns(packer, replace(model, rows=rows), few, digits))))
    return (sizes[0] - sizes[1]) / max(size - size // 2, 1)


def _choose_levels(rows: Sequence[Row], plan: Plan | None) -> tuple[Levels, int]:
    """Return how much is kept of each record, and the digits of those that are not kept in full."""
    levels = np.full(len(rows), FULL, np.int64)
    if plan is None or plan.full >= len(rows):
        return levels, DIGITS
    ranked = np.array(sorted(range(len(rows)), key=lambda number: highlights.importance(rows[number])))
    levels[ranked[plan.full :]] = SHOWN
    levels[ranked[plan.shown :]] = SHORT
    return levels, plan.digits


def _add_columns(packer: Packer, model: ReportModel, levels: Levels, digits: int) -> dict[str, Any]:
    """Add the columns of the records, and return what the script needs to read them.

    A column has only the records that are kept to its level at least.
    """
    rows = model.rows
    kept = {level: [rows[number] for number in np.flatnonzero(levels >= level)] for level in (SHORT, SHOWN, FULL)}
    exact = {level: np.where(levels[levels >= level] == FULL, DIGITS, digits) for level in kept}
    drawn = chart.choose_metric(model)

    def numbers(level: int, values: Sequence[float | None]) -> dict[str, Any]:
        """Return packed numbers, as exact as their level has them."""
        return {"level": level, "numbers": packer.add_numbers(values, exact[level])}

    def metric(name: str) -> dict[str, Any]:
        """Return a metric of the records that are kept."""
        level = SHORT if name == drawn else SHOWN if name in model.columns else FULL
        return numbers(level, [row.measure.metrics.get(name) for row in kept[level]])

    kinds = dict.fromkeys(kind for row in kept[FULL] for kind in row.measure.counts)
    texts = {name: packer.add_texts(values) for name, values in _list_texts(rows).items()}
    details = {str(number): _describe_rare_facts(rows[number]) for number in np.flatnonzero(levels >= SHOWN)}
    return {
        "size": len(rows),
        "levels": packer.add_wholes(levels),
        "texts": texts,
        "order": packer.add_wholes([row.measure.order for row in rows], steps=True),
        "equal": packer.add_wholes([int(row.measure.equal) for row in rows]),
        "figures": {
            # What the script finds in the column of the metric, or can divide itself, is not there a second time.
            "value": numbers(SHORT, [_find_value(row, drawn) for row in rows]),
            "limit": numbers(SHORT, [row.judged.limit if row.judged.metric else None for row in rows]),
            "ratio": numbers(FULL, [row.judged.ratio for row in kept[FULL]]),
            "floor": numbers(FULL, [row.judged.floor for row in kept[FULL]]),
        },
        "metrics": {name: metric(name) for name in highlights.list_metrics(model)},
        # Kind of value (zero, NaN, mask fill...) -> its number of elements.
        "counts": {
            wording.words(kind): {
                "level": FULL,
                "texts": packer.add_texts(str(row.measure.counts.get(kind, 0)) for row in kept[FULL]),
            }
            for kind in kinds
        },
        "details": {number: facts for number, facts in details.items() if facts},
    }


def _find_value(row: Row, drawn: str) -> float | None:
    """Return the value that decides a record; ``None`` if it is that of the drawn metric, which every record has."""
    judged = row.judged
    if not judged.metric or (judged.metric == drawn and row.measure.metrics.get(drawn) == judged.value):
        return None
    return judged.value


def _build_head(model: ReportModel) -> dict[str, Any]:
    """Return what the script needs besides records and counts: the frame of the picture, and the words."""
    picture = chart.build_chart(model)
    return {
        "shown": list(model.columns),
        "chart": {
            "metric": picture.metric,
            "decades": list(picture.decades),
            **{
                name: [[wording.printable(label), index] for label, index in spans]
                for name, spans in (("groups", picture.groups), ("steps", picture.steps), ("phases", picture.phases))
            },
        },
        "curves": [_describe_curve(one) for one in model.curves],
        "symbols": dict(wording.STATUS_SYMBOLS),
        "meanings": dict(wording.STATUS_MEANINGS),
        "colours": dict(wording.STATUS_COLOURS),
        "roles": dict(wording.ROLE_MEANINGS),
        "severity": list(highlights.SEVERITY),
        "atLeast": sorted(name for name, metric in METRICS.items() if metric.at_least),
        **({"words": _list_words(model)} if model.language != language.ENGLISH else {}),
    }


def _describe_curve(one: CurveOutcome) -> dict[str, Any]:
    """Return what the script draws of a curve; NaN and infinity are words."""
    sides = {side: plain([getattr(point, side) for point in one.points]) for side in ("reference", "target")}
    return {
        "name": wording.printable(one.name),
        "steps": [point.step for point in one.points],
        **sides,
        "limit": plain(one.limits.get("max_abs_error")),
        "parted": one.found.apart_from if one.found.apart_from >= 0 else None,
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
    if not (measure.arguments or measure.warnings or measure.ranges or measure.pairing not in {"", "name"}):
        return {}
    texts = (*wording.describe_pairing(row), *measure.warnings, *wording.describe_estimate(row))
    facts = {
        "arguments": [[*map(wording.printable, (name, *pair))] for name, pair in measure.arguments.items()],
        "warnings": [wording.printable(warning) for warning in texts],
    }
    return {name: value for name, value in facts.items() if value}


def _format_shape(sizes: Sequence[int], dtype: str) -> str:
    return str(list(sizes)) if dtype else ""

"""``result.json``: the whole outcome for machines, as strict JSON with a versioned schema (docs/result.schema.json)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from precflow.judgement.verdicts import EXIT_CODES
from precflow.report import highlights
from precflow.report.model import RESULT_SCHEMA, ReportModel, Row
from precflow.streams import printable_json

FORMAT = "precflow-result"
MOST_BYTES = 6_000_000  # of rows: the folder that is kept as an artifact stays below 10 MB
_DIGITS = 6  # of an error; no limit is stated more exactly
_DIGITS_NEAR_ONE = 12  # a cosine similarity of 1 - 1e-11 stays apart from 1


def document(model: ReportModel) -> dict[str, Any]:
    """Return the outcome as plain data that ``json`` writes strictly: no NaN, no infinity, text keys only.

    Of a run with very many records, those that matter least are counted and left out.
    """
    kept = _bounded(model)
    return {
        "format": FORMAT,
        "schema": RESULT_SCHEMA,
        "precflow": model.precflow,
        "recipe": model.recipe,
        "title": model.title,
        "run": model.run,
        "finished": model.finished,
        "seconds": strict(model.seconds),
        "command": model.command,
        "exit_code": EXIT_CODES[model.verdict.verdict],
        "emulated": model.emulated,
        "emulation": model.emulation,
        "verdict": strict(model.verdict),
        "region": {key: value for key, value in strict(model.region).items() if key != "roles"},
        "findings": [_finding(strict(finding)) for finding in model.findings],
        "sides": strict(model.sides),
        "differences": {
            name: {"reference": reference, "target": target} for name, (reference, target) in model.differences.items()
        },
        "stages": strict(model.stages),
        "columns": list(model.columns),
        "rows": kept,
        "rows_left_out": model.rows_left_out + len(model.rows) - len(kept),
        "recipe_yaml": model.recipe_yaml,
    }


def text(model: ReportModel) -> str:
    """Return ``result.json``: one record a line, so that two results can be compared by eye.

    Letters that would act on the screen of who looks at it (bidirectional marks, control characters) are escapes.
    """
    whole = document(model)
    rows = ",\n  ".join(_line(row) for row in whole.pop("rows"))
    head = json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=1)
    records = f"[\n  {rows}\n ]" if rows else "[]"
    return printable_json(f'{head[:-2]},\n "rows": {records}\n}}\n')


def _bounded(model: ReportModel) -> Sequence[dict[str, Any]]:
    """Return the rows that fit, in their order: those that matter most to a reader."""
    room, kept = MOST_BYTES, {}
    for number in sorted(range(len(model.rows)), key=lambda number: highlights.importance(model.rows[number])):
        row = _row(model.rows[number], model.columns)
        room -= len(_line(row).encode("utf-8", "backslashreplace"))
        if room < 0:
            break
        kept[number] = row
    return [kept[number] for number in sorted(kept)]


def strict(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses become objects, tuples lists, and NaN and infinity words.

    >>> strict({"a": (1.0, float("nan"), float("-inf"))})
    {'a': [1.0, 'NaN', '-Infinity']}
    """
    if isinstance(value, float):
        return _number(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: strict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [strict(inner) for inner in value]
    return value


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    digits = _DIGITS_NEAR_ONE if 0.9 < value < 1 else _DIGITS
    return float(f"{value:.{digits}g}")


def _row(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Return one record: who it is, how it was judged, and the metrics that the recipe shows."""
    measure, judged = row.measure, row.judged
    fields: dict[str, Any] = {
        "record": measure.record,
        "name": measure.name,
        "order": measure.order,
        "status": judged.status,
        "role": row.role,
    }
    if judged.metric:
        fields |= {
            "metric": judged.metric,
            "value": strict(judged.value),
            "limit": strict(judged.limit),
            "ratio": strict(judged.ratio),
            "standard": judged.standard,
        }
    shown = {metric: strict(measure.metrics[metric]) for metric in columns if metric in measure.metrics}
    optional = {"metrics": shown, "reason": judged.reason or measure.reason, **_evidence(row)}
    return fields | {key: value for key, value in optional.items() if value}


def _evidence(row: Row) -> dict[str, Any]:
    """Return what was kept of a record where it was not the whole tensor, and how far its metric is known."""
    measure = row.measure
    limits = measure.ranges.get(row.judged.metric)
    return {
        "evidence": "" if measure.evidence == "tensors" else measure.evidence,
        "share": measure.share if measure.share < 1 else None,
        "range": strict(limits) if limits else None,
    }


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    pairs = [{"what": what, "value": value} for what, value in finding["evidence"]]
    return finding | {"evidence": pairs}


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

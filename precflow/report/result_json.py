"""``result.json``: the whole outcome for programs, as strict JSON with a versioned schema (docs/result.schema.json).

:func:`render` writes it and :func:`parse` reads it back.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from precflow import breakdown
from precflow.agent import intake
from precflow.agent.contract import level_of, parse_identity
from precflow.curves.outcome import Point
from precflow.errors import StoreError
from precflow.judgement.verdicts import EXIT_CODES
from precflow.report import highlights
from precflow.report.model import RESULT_SCHEMA, ReportModel, Row
from precflow.streams import printable_json
from precflow.version import __version__

FORMAT = "precflow-result"
MOST_BYTES = 6_000_000  # of rows, so that the folder `public/` stays below 10 MB
_MOST_SAMPLES = 1_000  # whose values stand here one by one
_DIGITS = 6  # of a number; limits are not stated more exactly
_AGAIN = "copy it again from the folder of its run, or run the recipe again"
_NAME_ANOTHER = "name a run, a result.json, or the folder that holds one"
_DIGITS_NEAR_ONE = 12  # so that a cosine similarity of 1 - 1e-11 differs from 1


def build_document(model: ReportModel) -> dict[str, Any]:
    """Return the outcome as plain data: no NaN, no infinity, only text as keys.

    If a run has too many records, the least important ones are left out and counted.
    """
    kept = _keep_most_important(model)
    return {
        "format": FORMAT,
        "schema": RESULT_SCHEMA,
        "precflow": model.precflow,
        "recipe": model.recipe,
        "title": model.title,
        "run": model.run,
        "finished": model.finished,
        "seconds": make_strict(model.seconds),
        "command": model.command,
        "exit_code": EXIT_CODES[model.verdict.verdict],
        "emulated": model.emulated,
        "emulation": model.emulation,
        "verdict": make_strict(model.verdict),
        "region": {key: value for key, value in make_strict(model.region).items() if key != "roles"},
        "phases": make_strict(model.phases),
        "procedure": make_strict(model.procedure),
        "gradients": make_strict(model.gradients),
        "findings": [
            {key: value for key, value in make_strict(finding).items() if key != "translations"}
            | {"evidence": [{"what": what, "value": value} for what, value in finding.evidence]}
            | {"against": [{"rule": rule, "because": reason} for rule, reason in finding.against]}
            for finding in model.findings
        ],
        "whatifs": make_strict(model.whatifs),
        "operators": make_strict(model.operators),
        "parts": make_strict(model.parts),
        "task_metrics": [make_strict(replace(one, each=one.each[:_MOST_SAMPLES], shown=())) for one in model.task_metrics],
        "mends": make_strict(model.mends),
        "golden": make_strict(model.golden),
        "curves": [
            {key: value for key, value in make_strict(one).items() if key != "points"}
            | {"points": [[point.step, make_strict(point.reference), make_strict(point.target)] for point in one.points]}
            for one in model.curves
        ],
        "sides": make_strict(model.sides),
        "differences": {
            name: {"reference": reference, "target": target} for name, (reference, target) in model.differences.items()
        },
        "known_issues": [
            {**shown, "issue": {key: value for key, value in shown["issue"].items() if key != "zh"}}
            for shown in map(make_strict, model.known_issues)
        ],
        "sources": make_strict(model.sources),
        "stages": make_strict(model.stages),
        "groups": make_strict(model.groups),
        "columns": list(model.columns),
        "rows": kept,
        "rows_left_out": model.rows_left_out + len(model.rows) - len(kept),
        "recipe_yaml": model.recipe_yaml,
    }


def render(model: ReportModel) -> str:
    """Return ``result.json``, with one record on a line, so that ``diff`` of two results is readable.

    Control characters and marks of writing direction are written as escapes: the file may be shown in a terminal.
    """
    whole = build_document(model)
    rows = ",\n  ".join(_format_line(row) for row in whole.pop("rows"))
    head = json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=1)
    records = f"[\n  {rows}\n ]" if rows else "[]"
    # json.dumps indents everything or nothing, so the rows are put in by hand before the last "\n}" of the rest.
    return printable_json(f'{head[:-2]},\n "rows": {records}\n}}\n')


def _keep_most_important(model: ReportModel) -> Sequence[dict[str, Any]]:
    """Return the most important rows, as many as fit, in order of the graph."""
    room, kept = MOST_BYTES, {}
    for number in sorted(range(len(model.rows)), key=lambda number: highlights.importance(model.rows[number])):
        row = _build_row(model.rows[number], model.columns)
        room -= len(_format_line(row).encode("utf-8", "backslashreplace"))
        if room < 0:
            break
        kept[number] = row
    return [kept[number] for number in sorted(kept)]


def make_strict(value: Any) -> Any:
    """Return a value with only what JSON has: dataclasses become objects, tuples become lists, NaN and infinity become words.

    >>> make_strict({"a": (1.0, float("nan"), float("-inf"))})
    {'a': [1.0, 'NaN', '-Infinity']}
    """
    if isinstance(value, float):
        return _round_number(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: make_strict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): make_strict(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [make_strict(inner) for inner in value]
    return value


def _round_number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    digits = _DIGITS_NEAR_ONE if 0.9 < value < 1 else _DIGITS
    return float(f"{value:.{digits}g}")


def _build_row(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Return one record: its name, how it was judged, and the metrics that the recipe shows."""
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
            "value": make_strict(judged.value),
            "limit": make_strict(judged.limit),
            "ratio": make_strict(judged.ratio),
            "standard": judged.standard,
            **({} if judged.floor is None else {"floor": make_strict(judged.floor)}),
        }
    shown = {metric: make_strict(measure.metrics[metric]) for metric in columns if metric in measure.metrics}
    limits = measure.ranges.get(judged.metric)
    optional = {
        "metrics": shown,
        "reason": judged.reason or measure.reason,
        "equal": measure.equal,
        # What was kept of a record if it was not the whole tensor, and the range of its metric if that is estimated.
        "evidence": "" if measure.evidence == "tensors" else measure.evidence,
        "share": measure.share if measure.share < 1 else None,
        "range": make_strict(limits) if limits else None,
        "pairing": "" if measure.pairing == "name" else measure.pairing,
    }
    return fields | {key: value for key, value in optional.items() if value}


def parse(data: bytes, place: str) -> ReportModel:
    """Return what a ``result.json`` says. Of each record it has what :func:`render` has room for: no element type, no shape.

    Args:
        data: The content of the file.
        place: What to call it in an error.

    Raises:
        StoreError: It is cut short or no such file, or of another version of the schema.
    """
    try:
        plain = intake.parse_json(data)
    except ValueError as error:
        raise StoreError(f"{place} is no whole result: {error}", next_step=_AGAIN) from error
    if isinstance(plain, dict) and plain.get("format") == breakdown.FORMAT:
        raise StoreError(
            f"{place} is of a run that broke, in {plain.get('stage')}: nothing was compared",
            next_step=f"{str(plain.get('message'))[:200]}; the page beside it says where",
        )
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise StoreError(f"{place} is no result of precflow: it does not say format: {FORMAT}", next_step=_NAME_ANOTHER)
    if plain.get("schema") != RESULT_SCHEMA:
        raise StoreError(
            f"{place} has schema {plain.get('schema')!r}, and precflow {__version__} reads schema {RESULT_SCHEMA}",
            next_step=f"read it with the precflow that wrote it: {plain.get('precflow', 'unknown')}",
        )
    try:
        fields = plain | {
            "rows": [_read_row(row) for row in plain["rows"]],
            "curves": [one | {"points": [_read_point(*point) for point in one["points"]]} for one in plain["curves"]],
            "findings": [
                one
                | {"evidence": [(fact["what"], fact["value"]) for fact in one["evidence"]]}
                | {"against": [(rule["rule"], rule["because"]) for rule in one["against"]]}
                for one in plain["findings"]
            ],
            "differences": {name: (pair["reference"], pair["target"]) for name, pair in plain["differences"].items()},
        }
        # Not strict, because NaN and infinity are words in the file; unknown keys are those of a newer precflow.
        return msgspec.convert(fields, ReportModel, strict=False)
    except KeyError as error:
        raise StoreError(f"{place} is no whole result: it has no {error}", next_step=_AGAIN) from error
    except (msgspec.ValidationError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{place} is no result as precflow writes it: {error}", next_step=_AGAIN) from error


def _read_point(step: int, reference: float | str, target: float | str) -> Point:
    """Return a step of a curve; numbers that JSON lacks are words."""
    left, right = float(reference), float(target)
    return Point(step, left, right, abs(right - left))


def _read_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one record; its identity says what the file leaves out."""
    identity = parse_identity(row["record"])

    status = row["status"]
    measure = {
        "record": row["record"],
        "name": row["name"],
        "module": identity.module,
        "operator": identity.operator,
        "level": level_of(identity.operator),
        "phase": identity.phase,
        "order": row["order"],
        "join": status if status in {"unpaired_reference", "unpaired_target", "shape", "unreadable"} else "paired",
        "equal": row.get("equal", False),
        "metrics": row.get("metrics", {}),
        "evidence": row.get("evidence", "tensors"),
        "share": row.get("share", 1.0),
        "ranges": {row["metric"]: row["range"]} if "range" in row else {},
        "pairing": row.get("pairing", "" if status.startswith("unpaired") else "name"),
    }
    decided = {name: row[name] for name in ("metric", "value", "limit", "ratio", "standard", "floor", "reason") if name in row}
    return {"measure": measure, "judged": {"record": row["record"], "status": status, **decided}, "role": row["role"]}


def _format_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

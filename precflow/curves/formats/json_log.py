"""Curves in JSON: one document, or one object a line.

The shapes that are read::

    {"loss": [2.5, 2.1], "step": [1, 2]}            lists by name
    [{"step": 1, "loss": 2.5}, ...]                 objects, one a step
    {"log_history": [{"step": 1, "loss": 2.5}]}     the same inside another object: `trainer_state.json` of transformers
    {"1": {"loss": 2.5}, "2": ...}                  objects by step
    {"loss": {"1": 2.5, "2": 2.1}}                  numbers by step, by name
    [2.5, 2.1] or [[1, 2.5], [2, 2.1]]              the curve alone; with three numbers each, TensorBoard's download

Without steps the numbers are counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from precflow.agent import intake
from precflow.curves.columns import LACKING, Choice, Columns, read_columns
from precflow.curves.formats import Format, named
from precflow.curves.layouts import choose_columns
from precflow.curves.log import Log
from precflow.curves.numbers import name_type
from precflow.curves.series import Series
from precflow.curves.wanted import Wanted, find_column, find_step_column
from precflow.errors import CurveError

_SHAPES = "lists by name, or one object a step with the numbers by name"
_MOST_BAD_LINES = 100
_ENDINGS = frozenset({".json", ".jsonl", ".ndjson"})


def _recognize(log: Log) -> bool:
    """Tell whether a file is JSON: by its ending, or by a bracket and what follows it.

    The Trainer of transformers prints dicts of Python, and many loggers begin a line with a date in brackets.
    """
    text = log.start.lstrip()
    if log.is_binary:
        return False
    if log.path.suffix.lower() in _ENDINGS:
        return bool(text)
    opening, inside = text[:1], text[1:].lstrip()[:1]
    return (opening == "{" and inside in {'"', "}"}) or (opening == "[" and inside in {"{", "["})


def _read(logs: Sequence[Log], wanted: Wanted) -> Series:
    return read_json(logs[0].read_text(), wanted, logs[0].place)


def read_json(text: str, wanted: Wanted, place: str) -> Series:
    """Return a curve of a log in JSON, whether it is one document or one object a line.

    Raises:
        CurveError: It is cut, is no JSON, or does not have the curve.
    """
    try:
        document = _decode(text, msgspec.json.Decoder().decode)
    except ValueError as error:
        rows, notes = _read_lines(text)
        if not rows:
            raise _explain_unreadable(error, text, place) from error
        return _read_rows(rows, wanted, place, notes)
    return _read_document(document, wanted, place)


def _explain_unreadable(error: ValueError, text: str, place: str) -> CurveError:
    lines = text.count("\n") + 1
    if isinstance(error, json.JSONDecodeError):
        return CurveError(
            f"{place} is no whole JSON: {error.msg} at line {error.lineno}, column {error.colno}, of {lines} lines",
            next_step="it may have been copied while the run was writing, or was cut: copy it again",
        )
    return CurveError(f"{place} cannot be read as JSON: {error}", next_step=f"expected {_SHAPES}")


def _read_lines(text: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the objects of a file that has one a line, and which lines are none; no object if it is another kind of file."""
    decode = msgspec.json.Decoder().decode
    rows: list[Mapping[str, Any]] = []
    bad: list[int] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _decode(line, decode)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
            if len(bad) > _MOST_BAD_LINES and len(bad) > len(rows):
                return [], []
    if len(bad) > len(rows):
        return [], []
    notes = []
    if bad and bad[-1] == len(lines):
        notes.append(f"its last line ({bad.pop()}) is cut and left out")
    if bad:
        notes.append(f"{len(bad)} lines are no JSON and left out, the first is line {bad[0]}")
    return rows, notes


def _decode(text: str, decode: Callable[[str], Any]) -> Any:
    """Return the data of JSON, by the fast reader if that takes it: NaN and Infinity are no JSON, and Python writes them.

    Raises:
        ValueError: As :func:`precflow.agent.intake.parse_json`.
    """
    try:
        data = decode(text)
    except (msgspec.DecodeError, RecursionError):
        return intake.parse_json(text)
    if text.count("[") + text.count("{") > intake.DEEPEST:  # a line of a log has one: nothing has to be walked for it
        intake.check_depth(data)
    return data


def _read_document(data: Any, wanted: Wanted, place: str) -> Series:
    if isinstance(data, Mapping):
        return _read_mapping(data, wanted, place)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return _read_rows(data, wanted, place)
    if isinstance(data, list):
        return _read_list(data, wanted, place)
    raise CurveError(f"{place} holds {name_type(data)}", next_step=f"expected {_SHAPES}")


def _read_mapping(data: Mapping[str, Any], wanted: Wanted, place: str) -> Series:
    if data and all(isinstance(row, Mapping) for row in data.values()) and all(_is_step(key) for key in data):
        return _read_rows([{"step": int(key), **row} for key, row in data.items()], wanted, place)
    nested = [value for value in data.values() if _is_table(value)]
    if len(nested) == 1:
        return _read_rows(nested[0], wanted, place)
    if not any(_has_numbers_by_step(value) for value in data.values()):
        return _read_rows([data], wanted, place)  # a log of a single line
    columns = {name: value for name, value in data.items() if isinstance(value, (list, Mapping))}
    column = find_column(wanted, list(columns), place)
    values = columns[column]
    if isinstance(values, Mapping):
        bad = next((key for key in values if not _is_step(key)), None)
        if bad is not None:
            raise CurveError(f"{place}: {column} has {bad!r} where a step is expected", next_step=f"expected {_SHAPES}")
        return _read_entries({"step": [int(key) for key in values], column: [*values.values()]}, column, wanted, place)
    step_column = find_step_column(wanted, columns, place)
    steps = columns.get(step_column or "")
    if step_column and isinstance(steps, list) and step_column != column:
        if len(steps) != len(values):
            raise CurveError(
                f"{place}: {column} has {len(values)} numbers and {step_column} has {len(steps)}",
                next_step="it may have been cut: copy it again, or name the right columns"
                f" (curves.{wanted.name}.column, curves.{wanted.name}.step_column)",
            )
        return _read_entries({step_column: steps, column: values}, column, wanted, place)
    return _read_list(values, wanted, place)


def _read_rows(rows: Sequence[Mapping[str, Any]], wanted: Wanted, place: str, notes: Sequence[str] = ()) -> Series:
    rows = _flatten(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = Columns(names, lambda names: [[row.get(name, LACKING) for row in rows] for name in names])
    return read_columns(columns, choose_columns(wanted, columns, place), wanted, place, notes)


def _flatten(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return rows with the numbers of objects inside them, as in `{"step": 1, "data": {"actor/pg_loss": 0.5}}`.

    They have their own names; where an outer name is the same, that of the object and a dot stand before it.
    """
    if not any(type(value) is dict for row in rows for value in row.values()):  # a million rows have millions of values
        return rows
    outer = {name for row in rows for name, value in row.items() if not isinstance(value, dict)}
    flat = []
    for row in rows:
        whole = {name: value for name, value in row.items() if not isinstance(value, dict)}
        for name, inside in row.items():
            if isinstance(inside, dict):
                whole |= {(f"{name}.{inner}" if inner in outer else inner): value for inner, value in inside.items()}
        flat.append(whole)
    return flat


def _read_list(values: Sequence[Any], wanted: Wanted, place: str) -> Series:
    """Return the curve of a list of numbers, of pairs of step and number, or of TensorBoard's (time, step, number)."""
    if values and all(isinstance(row, list) and len(row) in (2, 3) for row in values):
        steps, numbers = [row[-2] for row in values], [row[-1] for row in values]
        return _read_entries({"step": steps, wanted.name: numbers}, wanted.name, wanted, place)
    return _read_entries({wanted.name: values}, wanted.name, wanted, place)


def _read_entries(entries: Mapping[str, Sequence[Any]], column: str, wanted: Wanted, place: str) -> Series:
    """Return the curve of one column; the other one, if there is one, has its steps."""
    columns = Columns(list(entries), lambda names: [list(entries[name]) for name in names])
    step = next((name for name in entries if name != column), None)
    return read_columns(columns, Choice((column,), step), wanted, place)


def _is_step(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _has_numbers_by_step(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, Mapping) and any(map(_is_step, value)))


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


FORMAT = Format(
    "JSON and JSON lines",
    30,
    _recognize,
    _read,
    named("trainer_state.json", "trainer_log.jsonl", "metrics.json", "vis_data/scalars.json"),
)

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
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from precflow.agent import intake
from precflow.curves.series import Series, make_series
from precflow.curves.wanted import Wanted, find_column, find_step_column, parse_step
from precflow.errors import CurveError

_COUNTED = "it names no steps: they are counted from 0"
_SHAPES = "lists by name, or one object a step with the numbers by name"
_MOST_BAD_LINES = 100


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
        if isinstance(row, Mapping):
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
    raise CurveError(f"{place} holds {_name_type(data)}", next_step=f"expected {_SHAPES}")


def _read_mapping(data: Mapping[str, Any], wanted: Wanted, place: str) -> Series:
    if data and all(isinstance(row, Mapping) for row in data.values()) and all(_is_step(key) for key in data):
        return _read_rows([{"step": int(key), **row} for key, row in data.items()], wanted, place)
    nested = [value for value in data.values() if _is_table(value)]
    if len(nested) == 1:
        return _read_rows(nested[0], wanted, place)
    if not any(isinstance(value, (list, Mapping)) for value in data.values()):
        return _read_rows([data], wanted, place)  # a log of a single line
    columns = {name: value for name, value in data.items() if isinstance(value, (list, Mapping))}
    column = find_column(wanted, list(columns), place)
    values = columns[column]
    if isinstance(values, Mapping):
        bad = next((key for key in values if not _is_step(key)), None)
        if bad is not None:
            raise CurveError(f"{place}: {column} has {bad!r} where a step is expected", next_step=f"expected {_SHAPES}")
        return _make([int(key) for key in values], values.values(), column, place)
    step_column = find_step_column(wanted, columns, place)
    steps = columns.get(step_column or "")
    if isinstance(steps, list) and step_column != column:
        if len(steps) != len(values):
            raise CurveError(
                f"{place}: {column} has {len(values)} numbers and {step_column} has {len(steps)}",
                next_step="it may have been cut: copy it again, or name the right columns"
                f" (curves.{wanted.name}.column, curves.{wanted.name}.step_column)",
            )
        return _make(_read_steps(steps, step_column or "", place), values, column, place)
    return _read_list(values, wanted, place)


def _read_rows(rows: Sequence[Mapping[str, Any]], wanted: Wanted, place: str, notes: Sequence[str] = ()) -> Series:
    present = dict.fromkeys(name for row in rows for name in row)
    column = find_column(wanted, list(present), place)
    step_column = find_step_column(wanted, present, place)
    having = [row for row in rows if column in row]
    if step_column is None:
        return _make(range(len(having)), [row[column] for row in having], column, place, (*notes, _COUNTED))
    without = sum(step_column not in row for row in having)
    if without:
        notes = (*notes, f"{without} numbers have no {step_column} and are left out")
        having = [row for row in having if step_column in row]
    steps = _read_steps([row[step_column] for row in having], step_column, place)
    return _make(steps, [row[column] for row in having], column, place, notes)


def _read_list(values: Sequence[Any], wanted: Wanted, place: str) -> Series:
    """Return the curve of a list of numbers, of pairs of step and number, or of TensorBoard's (time, step, number)."""
    if values and all(isinstance(row, list) and len(row) in (2, 3) for row in values):
        steps, numbers = [row[-2] for row in values], [row[-1] for row in values]
        return _make(_read_steps(steps, "step", place), numbers, wanted.name, place)
    return _make(range(len(values)), values, wanted.name, place, (_COUNTED,))


def _make(steps: Sequence[float], values: Iterable[Any], column: str, place: str, notes: Sequence[str] = ()) -> Series:
    numbers = _read_numbers(list(values), column, place)
    try:
        return make_series(steps, numbers, source=f"{place}, {column}", notes=notes)
    except ValueError as error:
        raise CurveError(f"{place}: {error}", next_step="name the column of the steps: curves.NAME.step_column") from error


def _read_steps(values: Sequence[Any], column: str, place: str) -> list[float]:
    """Return steps as floats.

    Raises:
        CurveError: One of them is no number.
    """
    try:
        return list(map(parse_step, values))
    except ValueError as error:
        number, value = next((number, value) for number, value in enumerate(values, start=1) if not _is_number(value))
        raise CurveError(
            f"{place}: entry {number} of {column} is {_name_type(value)}, expected a step",
            next_step="name the column that has the steps: curves.NAME.step_column",
        ) from error


def _read_numbers(values: Sequence[Any], column: str, place: str) -> list[float]:
    """Return values as floats: ``null``, which writers without NaN use for it, is NaN; numbers may be texts.

    Raises:
        CurveError: One of them is no number.
    """
    numbers: list[float] = []
    for number, value in enumerate(values, start=1):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(_widen(value))
        elif value is None:
            numbers.append(math.nan)
        else:
            numbers.append(_parse_text(value, number, column, place))
    return numbers


def _widen(value: float) -> float:
    """Return a number as a float; an integer of more than 308 digits, as a run away loss may be logged, is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _parse_text(value: Any, number: int, column: str, place: str) -> float:
    try:
        if isinstance(value, str):
            return float(value)
    except ValueError:
        pass
    raise CurveError(
        f"{place}: entry {number} of {column} is {_name_type(value)}, expected a number",
        next_step="name the column that has the numbers: curves.NAME.column",
    )


def _is_number(value: Any) -> bool:
    try:
        parse_step(value)
    except ValueError:
        return False
    return True


def _is_step(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _name_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: f"the text {str(value)[:40]!r}", bool: "true or false"}
    return names.get(type(value), repr(value)[:40])

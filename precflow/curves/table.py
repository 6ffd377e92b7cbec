"""Curves in tables of text: CSV, and other separators."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from precflow.curves.series import Series, make_series
from precflow.curves.wanted import Wanted, find_column, find_step_column, parse_step
from precflow.errors import CurveError

_SEPARATORS = ",\t;"


def find_separator(text: str, *, is_table: bool = False) -> str:
    r"""Return the separator of a table by its first two lines; ``""`` if it looks like none.

    Args:
        text: Its beginning.
        is_table: The name of the file says so: the names of the columns are enough.

    >>> find_separator("step,loss\n1,2.5\n"), find_separator("step 1, loss 2.5\nstep 2, loss 2.1\n")
    (',', '')
    """
    lines = [*text.split("\n", 2), ""]
    counts = {mark: lines[0].count(mark) for mark in _SEPARATORS}
    mark = max(counts, key=lambda mark: counts[mark])
    names, numbers = ([cell.strip().strip('"') for cell in line.split(mark)] for line in lines[:2])
    if any(not name or _is_number(name) for name in names):
        return ""
    if is_table:
        return mark
    return mark if counts[mark] and len(numbers) == len(names) and any(map(_is_number, numbers)) else ""


def read_table(text: str, wanted: Wanted, place: str, separator: str) -> Series:
    """Return a curve of a table whose first line has the names of its columns.

    Raises:
        CurveError: It does not have the curve, or holds something else than numbers.
    """
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=separator))
    except csv.Error as error:
        raise CurveError(
            f"{place} is no table that can be read: {error}",
            next_step="give the log of a run as CSV, JSON, or text with a pattern",
        ) from error
    names = [name.strip() for name in rows[0]] if rows else []
    column = find_column(wanted, names, place)
    step_column = find_step_column(wanted, names, place)
    value_place = names.index(column)
    step_place = names.index(step_column) if step_column else -1
    needed = max(value_place, step_place)
    filled = [row for row in rows[1:] if any(cell.strip() for cell in row)]
    whole = [row for row in filled if len(row) > needed]
    # Loggers of several curves leave a cell empty where a curve has no number at that step.
    having = [row for row in whole if row[value_place].strip()]
    notes = []
    if len(whole) < len(filled):
        notes.append(f"{len(filled) - len(whole)} lines are cut and left out")
    values = _parse([row[value_place] for row in having], column, place)
    if step_column is None:
        notes.append("it names no steps: they are counted from 0")
        steps: Sequence[float] = range(len(having))
    else:
        steps = _parse_steps([row[step_place] for row in having], step_column, place)
    try:
        return make_series(steps, values, source=f"{place}, {column}", notes=notes)
    except ValueError as error:
        message = f"{place}: {error} in column {step_column}"
        raise CurveError(message, next_step=f"name the column of the steps: curves.{wanted.name}.step_column=NAME") from error


def _parse_steps(cells: Sequence[str], column: str, place: str) -> list[float]:
    try:
        return [parse_step(cell) for cell in cells]
    except ValueError:
        return _parse(cells, column, place)


def _parse(cells: Sequence[str], column: str, place: str) -> list[float]:
    try:
        numbers: list[float] = np.array(cells, dtype=object).astype(np.float64).tolist() if cells else []
    except ValueError as error:
        bad = next(number for number, cell in enumerate(cells, start=1) if not _is_number(cell))
        raise CurveError(
            f"{place}: entry {bad} of column {column} is {cells[bad - 1][:40]!r}, expected a number",
            next_step="name the column that has the numbers: curves.NAME.column",
        ) from error
    return numbers


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""A curve of named columns, whatever file they were read from: a table, a spreadsheet, or objects of JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from precflow.curves import epochs
from precflow.curves.numbers import parse_steps, parse_values
from precflow.curves.series import Numbering, Series, Values, make_series
from precflow.curves.wanted import Wanted, fold, is_of_training
from precflow.errors import CurveError

LACKING = object()
"""What a column holds for a row that has no such entry."""
COUNTED = "it names no steps: they are counted from 0"
_EPOCH, _MODES = "epoch", ("mode", "split", "phase")


@dataclass(frozen=True)
class Columns:
    """Named columns of the same length.

    Attributes:
        names: In the order of the file; one may stand twice.
        read: Returns the entries of some columns: one list each, with ``LACKING`` where a row has no entry.
    """

    names: Sequence[str]
    read: Callable[[Sequence[str]], list[list[Any]]]


class Choice(NamedTuple):
    """Which columns make a curve.

    Attributes:
        values: The columns of its numbers, which are added up.
        step: The column of its steps; ``None`` if there is none.
        only: A column and the entry of the rows that count; ``None`` if all do.
    """

    values: tuple[str, ...]
    step: str | None
    only: tuple[str, str] | None = None


def read_columns(columns: Columns, choice: Choice, wanted: Wanted, place: str, notes: Sequence[str] = ()) -> Series:
    """Return the curve of columns that were chosen.

    Rows count if they have every number, and if they are of training where a column says what they are of. Steps that begin
    anew in each epoch are numbered through. Where no column has steps, epochs are steps if there is one row an epoch.

    Raises:
        CurveError: An entry is no number.
    """
    mode = next((name for name in columns.names if fold(name) in _MODES), None)
    epoch = next((name for name in columns.names if fold(name) == _EPOCH and name not in {choice.step, *choice.values}), None)
    wishes = (choice.step, epoch, mode, choice.only and choice.only[0], *choice.values)
    needed = list(dict.fromkeys(name for name in wishes if name))
    entries = dict(zip(needed, columns.read(needed), strict=True))
    kept = [True] * len(entries[choice.values[0]])
    for name in choice.values:
        kept = [one and entry is not LACKING for one, entry in zip(kept, entries[name], strict=True)]
    if choice.only:
        column, content = choice.only
        kept = [one and entry == content for one, entry in zip(kept, entries[column], strict=True)]
    if mode and any(map(is_of_training, entries[mode])):
        kept = [one and is_of_training(entry) for one, entry in zip(kept, entries[mode], strict=True)]
    if choice.step:
        stepless = sum(one and entry is LACKING for one, entry in zip(kept, entries[choice.step], strict=True))
        if stepless:
            notes = (*notes, f"{stepless} numbers have no {choice.step} and are left out")
            kept = [one and entry is not LACKING for one, entry in zip(kept, entries[choice.step], strict=True)]
    rows = entries if all(kept) else {name: list(itertools.compress(column, kept)) for name, column in entries.items()}
    parts = [parse_values(rows[name], name, wanted, place) for name in choice.values]
    steps, numbering = _find_steps(rows, choice.step, epoch, wanted, place)
    if steps is None:
        notes = (*notes, COUNTED)
        steps = np.arange(len(parts[0]), dtype=np.float64)
    if numbering:
        notes = (*notes, epochs.NOTE)
    named = choice.only[1] if choice.only else " + ".join(choice.values)
    try:
        return make_series(steps, np.sum(parts, axis=0), source=f"{place}, {named}", notes=notes, numbering=numbering)
    except ValueError as error:
        message = f"{place}: {error} in column {choice.step or epoch}"
        raise CurveError(message, next_step=f"name the right one: {wanted.setting('step_column')}") from error


def _find_steps(
    rows: dict[str, list[Any]], step: str | None, epoch: str | None, wanted: Wanted, place: str
) -> tuple[Values | None, Numbering | None]:
    """Return the steps of rows, numbered through; ``None`` if they have none."""
    try:
        epoch_of = parse_steps(rows[epoch], epoch, wanted, place) if epoch else None
    except CurveError:  # it is for people, such as "1st"
        epoch_of = None
    if step:
        steps = parse_steps(rows[step], step, wanted, place)
        return (steps, None) if epoch_of is None else epochs.number_through(steps, epoch_of)
    if epoch_of is not None and epochs.are_whole(epoch_of) and (np.diff(epoch_of) > 0).all():
        return epoch_of, None
    return None, None

"""Entries of a log as numbers: texts, numbers of JSON, and what is neither."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from precflow.agent.intake import LONGEST_NUMBER
from precflow.curves.series import Values
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

_BEYOND = 1e300  # an integer may have more digits than a float can hold


class NumberError(ValueError):
    """A number that cannot be computed with: it has too many digits, or is beyond float64."""


def parse_values(entries: Sequence[Any], column: str, wanted: Wanted, place: str) -> Values:
    """Return entries as floats: ``None``, which writers without NaN use for it, is NaN; numbers may be texts.

    Raises:
        CurveError: One of them is no number that a float64 holds.
    """
    try:
        return _parse(entries, parse_value)
    except ValueError as error:
        message = f"{place}: {_find_bad(entries, parse_value, column, 'a number')}"
        raise CurveError(message, next_step=f"name the column of the numbers: {wanted.setting('column')}") from error


def parse_steps(entries: Sequence[Any], column: str, wanted: Wanted, place: str) -> Values:
    """Return steps as floats: numbers, their texts, or the first of the two in `5/120`.

    Raises:
        CurveError: One of them is no step.
    """
    try:
        return _parse(entries, parse_step)
    except ValueError as error:
        message = f"{place}: {_find_bad(entries, parse_step, column, 'a step')}"
        raise CurveError(message, next_step=f"name the column of the steps: {wanted.setting('step_column')}") from error


def parse_step(value: Any) -> float:
    """Return a step: a number, its text, or the first of the two in `5/120`.

    Raises:
        ValueError: It is none of these.

    >>> parse_step(5), parse_step("5/120")
    (5.0, 5.0)
    """
    if isinstance(value, str):
        step, slash, most = value.partition("/")
        if slash:
            float(most)
        return parse_text(step)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("expected a number")  # noqa: TRY004  the caller shows what came
    return float(value) if abs(value) < _BEYOND else math.inf


def parse_text(text: str) -> float:
    """Return the number that a text is.

    Raises:
        NumberError: It has more digits than any number that can be computed with, or is beyond float64.
        ValueError: It is no number.
    """
    if len(text) > LONGEST_NUMBER:
        raise NumberError(f"has {len(text)} digits, expected at most {LONGEST_NUMBER}")
    number = float(text)
    if math.isinf(number) and "n" not in text.lower():  # `inf` and `Infinity` say what they mean, 1e400 does not
        raise NumberError(f"is {text.strip()[:24]}, which is beyond what a float64 holds")
    return number


def name_type(value: Any) -> str:
    """Return what a value of JSON is, in words."""
    names = {dict: "an object", list: "a list", str: f"the text {str(value)[:40]!r}", bool: "true or false"}
    return names.get(type(value), repr(value)[:40])


def parse_value(value: Any) -> float:
    """Return a number of JSON, or that of a text; ``None`` is NaN.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, str):
        return parse_text(value)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("expected a number")  # noqa: TRY004  the caller shows what came
    try:
        return float(value)
    except OverflowError:
        raise NumberError("is an integer beyond what a float64 holds") from None


def _parse(entries: Sequence[Any], parse: Callable[[Any], float]) -> Values:
    """Return entries as floats, all at once if they are plain numbers or texts of them.

    Raises:
        ValueError: One of them is none.
    """
    if set(map(type, entries)) <= {str, float}:
        try:
            numbers: Values = np.array(entries, dtype=object).astype(np.float64)
        except ValueError:  # some steps are none for NumPy, such as 5/120
            pass
        else:
            if not np.isinf(numbers).any():
                return numbers
    return np.fromiter(map(parse, entries), dtype=np.float64, count=len(entries))


def _find_bad(entries: Sequence[Any], parse: Callable[[Any], float], column: str, expected: str) -> str:
    """Return which entry is not what it should be, and why."""
    for number, value in enumerate(entries, start=1):
        why = explain_bad(value, parse, expected)
        if why:
            return f"entry {number} of {column} {why}"
    return f"{column} cannot be read"


def explain_bad(value: Any, parse: Callable[[Any], float], expected: str) -> str:
    """Return why a value is no number; ``""`` if it is one.

    >>> explain_bad("two", parse_value, "a number"), explain_bad("1e400", parse_value, "a number")
    ("is the text 'two', expected a number", 'is 1e400, which is beyond what a float64 holds')
    """
    try:
        parse(value)
    except NumberError as error:
        return str(error)
    except ValueError:
        return f"is {name_type(value)}, expected {expected}"
    return ""

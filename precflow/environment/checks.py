"""One line of a check of an environment, as the screen of `precflow doctor` and the report show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
        topic: First column.
        text: What was found.
        problem: Whether it has to be fixed.
        fix: How to fix it; ``""`` if there is nothing to fix, or no known way.
        unknown: It could not be told whether this is right.
    """

    topic: str
    text: str
    problem: bool = False
    fix: str = ""
    unknown: bool = False

    @property
    def mark(self) -> str:
        """``✗`` for a problem, ``?`` for what could not be told, else nothing."""
        return "✗" if self.problem else "?" if self.unknown else ""


def count_problems(rows: Sequence[Row]) -> str:
    """Return in words what has to be fixed.

    >>> count_problems([Row("store", "x", problem=True), Row("clock", "y", unknown=True)])
    '1 thing to fix, 1 that could not be told'
    """
    problems, unknown = sum(row.problem for row in rows), sum(row.unknown for row in rows)
    text = f"{problems} thing{'s' if problems > 1 else ''} to fix" if problems else "nothing to fix"
    return f"{text}, {unknown} that could not be told" if unknown else text

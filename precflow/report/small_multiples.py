"""Small pictures of one number over several runs, all on the same axes, so that a page of them can be read at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precflow import numbers

WIDTH, HEIGHT = 220, 92
_LEFT, _RIGHT, _TOP, _BOTTOM = 10, 10, 12, 14
_MOST_IN_WORDS = 5
_LOWEST = 1e-12  # of a drawn number; what is smaller or 0 stands at the bottom


@dataclass(frozen=True)
class Mark:
    """One run in a picture.

    Attributes:
        x: From the left.
        y: From the top.
        kind: ``good``, ``bad`` or ``doubt``: the verdict of the run.
        text: The run and the number in words.
        broken: It is no number, such as NaN.
    """

    x: float
    y: float
    kind: str
    text: str
    broken: bool = False


@dataclass(frozen=True)
class Multiple:
    """One picture.

    Attributes:
        title: What is drawn.
        lines: Points of each unbroken line, as SVG wants them.
        marks: One for each run that has the number, or that says that it is none.
        limit: Height of the line that a number should stay under; ``None`` without one.
        values: The numbers in words, of many the first and the last.
        summary: The picture in a sentence.
    """

    title: str
    lines: tuple[str, ...]
    marks: tuple[Mark, ...]
    limit: float | None
    values: str
    summary: str


@dataclass(frozen=True)
class Axes:
    """What all pictures of a group share: exponents of ten at the bottom and at the top, and the runs from left to right."""

    low: float
    high: float
    runs: tuple[int, ...]
    kinds: tuple[str, ...]


def choose_axes(series: Sequence[Sequence[float | None]], runs: Sequence[int], kinds: Sequence[str], limit: float = 0) -> Axes:
    """Return axes on which all numbers have room.

    Args:
        series: One number for each run, ``None`` where a run has none.
        runs: Numbers of the runs.
        kinds: ``good``, ``bad`` or ``doubt`` of each run.
        limit: A limit that has to be seen too; 0 for none.
    """
    found = [number for one in series for number in one if number is not None and number > _LOWEST and math.isfinite(number)]
    sizes = [math.log10(number) for number in (*found, *([limit] if limit else []))]
    low, high = (math.floor(min(sizes)), math.ceil(max(sizes))) if sizes else (-1, 0)
    if any(number is not None and number <= _LOWEST for one in series for number in one):
        low -= 1  # a lane of its own at the bottom
    return Axes(low, max(high, low + 1), tuple(runs), tuple(kinds))


def draw(title: str, values: Sequence[float | None], axes: Axes, limit: float = 0) -> Multiple:
    """Return the picture of one number over the runs, on a logarithmic scale.

    Args:
        title: What it is.
        values: One for each run: ``None`` if the run says nothing of it, NaN or infinity if it is no number there.
        axes: Shared with the others.
        limit: Drawn as a line; 0 for none.
    """

    def across(place: int) -> float:
        """Return where a run stands from the left; a single one in the middle."""
        share = place / (len(axes.runs) - 1) if len(axes.runs) > 1 else 0.5
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * share, 1)

    def up(number: float) -> float:
        """Return the height of a number."""
        share = (math.log10(max(number, _LOWEST)) - axes.low) / (axes.high - axes.low)
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(max(share, 0.0), 1.0), 1)

    marks: list[Mark] = []
    lines: list[list[str]] = [[]]
    for place, (run, kind, value) in enumerate(zip(axes.runs, axes.kinds, values, strict=True)):
        if value is None or not math.isfinite(value):
            lines.append([])
        if value is None:
            continue
        broken = not math.isfinite(value)
        mark = Mark(across(place), _TOP if broken else up(value), kind, f"run {run}: {_describe(value)}", broken)
        marks.append(mark)
        if not broken:
            lines[-1].append(f"{mark.x},{mark.y}")
    known = [_describe(value) for value in values if value is not None]
    return Multiple(
        title,
        tuple(" ".join(points) for points in lines if len(points) > 1),
        tuple(marks),
        up(limit) if limit else None,
        " → ".join(known if len(known) <= _MOST_IN_WORDS else [known[0], "...", known[-1]]),
        f"{title}: {'; '.join(mark.text for mark in marks)}",
    )


def _describe(number: float) -> str:
    return numbers.number(number) if math.isfinite(number) else "no number"

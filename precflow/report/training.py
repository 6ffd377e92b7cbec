"""Training on the page: the procedure check by check, and the gradient of each parameter over the steps as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precflow import numbers
from precflow.diagnosis.training.gradients import GradientRow
from precflow.report import wording

MOST_PARAMETERS, MOST_STEPS = 40, 24  # in the picture
TEXT_STEPS = 8  # with more columns the cells hold no text
LABEL, ROW, TOP, BOTTOM, WIDTH, GAP = 300, 20, 46, 8, 1000, 24  # of the picture, in units of the SVG
_LINES = (1e-6, 1e-4, 1e-2, 0.1, 0.5)  # between the shades, of 1 - cosine and of the relative difference of the norms


@dataclass(frozen=True)
class Cell:
    """One parameter in one step: where, how dark, what it says, and the whole in words."""

    x: float
    y: float
    level: int
    text: str
    title: str


@dataclass(frozen=True)
class GradientPicture:
    """Two grids side by side: parameters from the loss backwards from top to bottom, steps from left to right.

    Attributes:
        names: ``(height, name)`` of each parameter.
        heads: ``(place, step)`` above each column, of both grids.
        cells: Of both grids: the norm on the left, the direction on the right.
        width: Of a cell.
        height: Of the picture.
        left_out: Parameters that are not in the picture: those whose gradients agree best.
        summary: The picture in one sentence, for those who cannot see it.
    """

    names: tuple[tuple[float, str], ...]
    heads: tuple[tuple[float, str], ...]
    cells: tuple[Cell, ...]
    width: float
    height: float
    left_out: int
    summary: str


def draw_gradients(rows: Sequence[GradientRow]) -> GradientPicture | None:
    """Return the picture of the gradients; ``None`` if none were recorded."""
    if not rows:
        return None
    every = list(dict.fromkeys(row.parameter for row in rows))
    worst: dict[str, float] = dict.fromkeys(every, 0.0)
    for row in rows:
        worst[row.parameter] = max(worst[row.parameter], *_measure_distances(row))
    shown = set(sorted(every, key=lambda name: -worst[name])[:MOST_PARAMETERS])
    names = [name for name in every if name in shown]
    steps = sorted({row.step for row in rows})
    steps = steps[:: -(-len(steps) // MOST_STEPS)]
    width = ((WIDTH - LABEL - GAP) / 2) / len(steps)
    place = {name: TOP + number * ROW for number, name in enumerate(names)}
    column = {step: number * width for number, step in enumerate(steps)}
    cells = []
    for row in rows:
        if row.rank or row.parameter not in place or row.step not in column:
            continue
        norm, direction = _measure_distances(row)
        left, right = LABEL + column[row.step], LABEL + (WIDTH - LABEL + GAP) / 2 + column[row.step]
        title = describe_gradient(row)
        cosine = "?" if row.cosine is None else f"{row.cosine:.4g}"
        texts = (_format_ratio(row), cosine) if len(steps) <= TEXT_STEPS else ("", "")
        cells += [
            Cell(round(left, 1), place[row.parameter], find_level(norm), texts[0], title),
            Cell(round(right, 1), place[row.parameter], find_level(direction), texts[1], title),
        ]
    heads = [
        (round(start + column[step] + width / 2, 1), str(step))
        for start in (LABEL, LABEL + (WIDTH - LABEL + GAP) / 2)
        for step in steps
    ]
    apart = sum(distance > _LINES[2] for distance in worst.values())
    return GradientPicture(
        names=tuple((place[name], wording.shorten(name, 38)) for name in names),
        heads=tuple(heads),
        cells=tuple(cells),
        width=round(width, 2),
        height=TOP + len(names) * ROW + BOTTOM,
        left_out=len(every) - len(names),
        summary=(
            f"Gradients of {numbers.plural(len(every), 'parameter')} in {numbers.plural(len(steps), 'step')}: "
            f"{numbers.plural(apart, 'is', 'are')} more than 1 % apart in norm or direction."
        ),
    )


def describe_gradient(row: GradientRow) -> str:
    """Return norm and direction of a gradient in words."""
    norms = [numbers.number(value) if value is not None else "unknown" for value in (row.reference, row.target)]
    cosine = "unknown" if row.cosine is None else f"{row.cosine:.9g}"
    return f"{row.parameter}, step {row.step}: norm {norms[0]} / {norms[1]}, cosine {cosine}"


def find_level(distance: float) -> int:
    """Return the shade of a distance: 0 for equal to within rounding, 5 for another thing altogether; -1 if it is not known.

    >>> find_level(0.0), find_level(2e-3), find_level(0.75), find_level(float("nan"))
    (0, 2, 5, -1)
    """
    return -1 if math.isnan(distance) else sum(distance > line for line in _LINES)


def _measure_distances(row: GradientRow) -> tuple[float, float]:
    """Return the relative difference of the norms, and 1 - cosine; not a number where unknown."""
    if row.reference is None or row.target is None:
        norm = math.nan
    else:
        largest = max(row.reference, row.target)
        norm = abs(row.target - row.reference) / largest if largest else 0.0
    both_zero = row.reference == 0 and row.target == 0
    return norm, 0.0 if both_zero else math.nan if row.cosine is None else max(0.0, 1.0 - row.cosine)


def _format_ratio(row: GradientRow) -> str:
    if not row.reference or row.target is None:
        return "?" if row.reference is None or row.target is None else "0 / 0" if not row.target else "new"
    return f"\u00d7{row.target / row.reference:.4g}"

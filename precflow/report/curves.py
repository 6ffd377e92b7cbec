"""Curves in words and as a picture, for terminal, page and Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precflow import numbers
from precflow.curves.deviations import Deviations
from precflow.curves.growth import FEWEST, Growth
from precflow.curves.outcome import CurveOutcome, Point

WIDTH, HEIGHT, LOWER = 1000, 312, 202  # of the two pictures of a curve, in units of the SVG
HALF = 600  # width of each where two curves stand side by side
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 26, 14, 42  # margins
_TICKS = 5
_DASH = 3.0  # half the length of the mark of a point that has no neighbours
_FEWEST_DECADES = 2


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and its label."""

    place: float
    label: str


@dataclass(frozen=True)
class Picture:
    """A curve as SVG: both sides overlaid, and the absolute difference below them on a logarithmic scale.

    Attributes:
        reference: Polylines of the reference, broken where it is not finite: ``x,y x,y ...``.
        target: The same of the target.
        difference: The same of the difference, in the lower picture.
        equal: Places along the steps at which both are equal: a logarithmic scale has no 0.
        broken: Places along the steps at which a side is not finite.
        steps: Marks on the axis of steps.
        values: Marks on the axis of the upper picture.
        decades: Marks on the axis of the lower picture.
        limit: Height of the limit on the largest difference in the lower picture; ``None`` without one.
        parted: Place along the steps at which the longest stretch begins in which they are apart; ``None`` without one.
        stretch: In which steps they are apart, in words; ``""`` if they are not.
        summary: The picture in one sentence, for those who cannot see it.
        title: Of the axis of values: the name of the curve.
        width: Of both pictures.
    """

    reference: tuple[str, ...]
    target: tuple[str, ...]
    difference: tuple[str, ...]
    equal: tuple[float, ...]
    broken: tuple[float, ...]
    steps: tuple[Tick, ...]
    values: tuple[Tick, ...]
    decades: tuple[Tick, ...]
    limit: float | None
    parted: float | None
    stretch: str
    summary: str
    title: str
    width: int = WIDTH


@dataclass(frozen=True)
class Axes:
    """The ranges that a picture shows, so that two pictures beside each other can have the same.

    Attributes:
        steps: First and last step.
        values: Lowest and highest number of the upper picture.
        decades: Lowest and highest exponent of ten of the lower picture.
    """

    steps: tuple[int, int]
    values: tuple[float, float]
    decades: tuple[int, int]


def describe_curve(one: CurveOutcome) -> str:
    """Return the deviation of a curve in one line, parts separated by three spaces; ``""`` if no step was compared."""
    found = one.found
    if not found.compared:
        return ""
    if not found.max_abs_error:
        return f"equal at {numbers.plural(found.compared, 'step')}"
    parts = [
        f"max |difference| {numbers.number(found.max_abs_error)} at step {found.max_abs_step}",
        f"first {numbers.number(found.first_abs_error)}",
    ]
    if one.relation.kind:
        parts.append(f"{one.relation.words} at every step")
    else:
        parts.append(f"mean {100 * found.mean_rel_error:.3g} % of the reference")
    if not one.relation.kind and found.apart_from >= 0:
        parts.append(describe_stretch(found))
    return "   ".join([*parts, f"{numbers.plural(found.compared, 'step')}"])


def describe_stretch(found: Deviations) -> str:
    """Return from which step on, or from which to which, two curves are apart; ``""`` if they are not."""
    if found.apart_from < 0:
        return ""
    until_end = found.apart_from == found.parted_step
    return f"apart from step {found.apart_from} {'on' if until_end else f'to {found.apart_to}'}"


def describe_growth(growth: Growth) -> str:
    """Return in words how the difference grows, with the uncertainty of that."""
    slope = f"{numbers.number(growth.per_step)} ± {numbers.number(growth.per_step_uncertainty)} with each step"
    if growth.kind == "unknown":
        if growth.steps < FEWEST:
            return f"cannot be told from {numbers.plural(growth.steps, 'step')}; {FEWEST} are needed"
        return f"cannot be told: {slope}, which chance alone makes in {numbers.share(growth.chance)} of all walks"
    walk = numbers.number(growth.per_root_step)
    return {
        "none": "there is no difference",
        "steady": "it does not grow: it fluctuates around one value",
        "noise": f"like the square root of the step, which is noise: {walk} times that root",
        "bias": f"like the step, which is a bias: {slope}",
        "shrinks": "it does not grow: it shrinks",
        "faster": f"faster than the step, like its power {growth.exponent:.2g}: neither noise nor a bias",
    }[growth.kind]


def choose_axes(outcomes: Sequence[CurveOutcome]) -> Axes | None:
    """Return axes on which every point of these curves has a place; ``None`` if there is nothing to draw."""
    points = [point for one in outcomes for point in one.points]
    finite = [value for point in points for value in (point.reference, point.target) if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    sizes = [point.difference for point in points if _is_drawn(point)]
    limits = [limit for one in outcomes if (limit := one.limits.get("max_abs_error"))]
    bounds = [*sizes, *limits]
    bottom, top = (math.floor(math.log10(min(bounds))), math.ceil(math.log10(max(bounds)))) if bounds else (-6, 0)
    steps = [point.step for point in points]
    return Axes((min(steps), max(steps)), (low - margin, high + margin), (min(bottom, top - _FEWEST_DECADES), top))


def draw_curve(one: CurveOutcome, axes: Axes | None = None, width: int = WIDTH) -> Picture | None:
    """Return the picture of a curve; ``None`` if no step was compared.

    Args:
        one: The curve.
        axes: What the picture shows; without, just what this curve takes.
        width: Of the picture, in units of the SVG.
    """
    points = one.points
    axes = axes or choose_axes([one])
    if not points or axes is None:
        return None
    (first, last), (low, high), (bottom, top) = axes.steps, axes.values, axes.decades
    limit = one.limits.get("max_abs_error")

    def across(step: int) -> float:
        """Return where a step stands from the left; a single one in the middle."""
        return round(_LEFT + (width - _LEFT - _RIGHT) * ((step - first) / (last - first) if last > first else 0.5), 1)

    def upper(value: float) -> float:
        """Return the height of a value in the upper picture, that of the curves."""
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low), 1)

    def lower(value: float) -> float:
        """Return the height of a difference in the lower picture, on a logarithmic scale."""
        share = (math.log10(value) - bottom) / (top - bottom)
        return round(LOWER - _BOTTOM - (LOWER - _TOP - _BOTTOM) * share, 1)

    exponents = range(bottom, top + 1, max(1, (top - bottom + 3) // 4))
    return Picture(
        reference=_join(
            [(across(point.step), upper(point.reference)) if math.isfinite(point.reference) else None for point in points]
        ),
        target=_join([(across(point.step), upper(point.target)) if math.isfinite(point.target) else None for point in points]),
        difference=_join([(across(point.step), lower(point.difference)) if _is_drawn(point) else None for point in points]),
        equal=tuple(across(point.step) for point in points if point.difference == 0),
        broken=tuple(across(point.step) for point in points if not math.isfinite(point.difference)),
        steps=tuple(Tick(across(step), str(step)) for step in choose_steps(first, last)),
        values=tuple(Tick(upper(value), numbers.number(value)) for value in choose_values(low, high)),
        decades=tuple(Tick(lower(10.0**exponent), f"1e{exponent}") for exponent in exponents),
        limit=lower(limit) if limit else None,
        parted=across(one.found.apart_from) if one.found.apart_from >= 0 else None,
        stretch=describe_stretch(one.found),
        summary=f"{one.name} of both sides: {describe_curve(one)}. Growth of the difference: {describe_growth(one.growth)}.",
        title=one.name,
        width=width,
    )


def choose_steps(first: int, last: int) -> list[int]:
    """Return at most six round steps of a range, and its first one if there is no other.

    >>> choose_steps(1, 400)
    [100, 200, 300, 400]
    """
    span = max(last - first, 1)
    size = 10 ** math.floor(math.log10(span / _TICKS)) if span >= _TICKS else 1
    width = next(int(size * factor) for factor in (1, 2, 5, 10) if span / (size * factor) <= _TICKS)
    return list(range(-(-first // width) * width, last + 1, width)) or [first]


def choose_values(low: float, high: float) -> list[float]:
    """Return a few round numbers between two.

    >>> choose_values(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    size = 10 ** math.floor(math.log10((high - low) / _TICKS))
    width = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= _TICKS)
    digits = max(0, -math.floor(math.log10(width)))
    return [round(float(number * width), digits + 1) for number in range(math.ceil(low / width), math.floor(high / width) + 1)]


def _is_drawn(point: Point) -> bool:
    return math.isfinite(point.difference) and point.difference > 0


def _join(places: Sequence[tuple[float, float] | None]) -> tuple[str, ...]:
    """Return polylines, one for each stretch without a hole; a point alone becomes a short line, or nobody would see it."""
    lines: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is None:
            lines.append([])
        else:
            lines[-1].append(place)
    for line in lines:
        if len(line) == 1:
            ((x, y),) = line
            line[:] = [(x - _DASH, y), (x + _DASH, y)]
    return tuple(" ".join(f"{x:g},{y:g}" for x, y in line) for line in lines if line)

"""What the report shows of single records in full: tables and pictures, ready for the template, within a bound of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from precflow.comparison.detail.description import Description
from precflow.comparison.detail.detail import Detail, Element
from precflow.comparison.detail.record import RecordDetail
from precflow.comparison.detail.whereabouts import percent
from precflow.report import wording
from precflow.report.model import ReportModel, Row
from precflow.report.screens.two_records import sides

# Small pictures as paths of SVG: histograms and profiles, in coordinates of a box of a fixed size. Numbers only, no text.

WIDTH, HEIGHT = 360, 72
_DIGITS = 1
_FILLED = 0.9  # of the room that a bar has


@dataclass(frozen=True)
class Picture:
    """Paths in a box of ``WIDTH`` by ``HEIGHT``, the origin at the top left.

    Attributes:
        paths: One for each series.
        low: What stands below the left edge.
        high: What stands below the right edge.
        summary: The picture in one sentence, for those who cannot see it.
    """

    paths: tuple[str, ...]
    low: str
    high: str
    summary: str


def outline(counts: Sequence[float], largest: float = 0.0, *, logarithmic: bool = True) -> str:
    """Return the outline of a histogram as one closed path.

    Args:
        counts: Heights, 0 or more.
        largest: What fills the whole height; the largest count by default.
        logarithmic: Heights are logarithms of ``1 + count``.

    >>> outline([1, 0], logarithmic=False)
    'M0 72V0H180V72H360V72Z'
    """
    if not counts:
        return ""
    top = _height(largest or max(counts), logarithmic=logarithmic)
    step = WIDTH / len(counts)
    parts = [f"M0 {HEIGHT}"]
    for number, count in enumerate(counts):
        share = _height(count, logarithmic=logarithmic) / top if top else 0.0
        parts.append(f"V{_short(HEIGHT * (1 - share))}H{_short(step * (number + 1))}")
    return "".join([*parts, f"V{HEIGHT}Z"])


def bars(counts: Sequence[float], *, logarithmic: bool = True) -> str:
    """Return single bars with gaps between them as one path; what is not 0 is at least one unit high.

    >>> bars([2, 0, 1], logarithmic=False)
    'M0 72V0H108V72ZM240 72V36H348V72Z'
    """
    heights = [_height(count, logarithmic=logarithmic) for count in counts]
    top = max(heights, default=0.0)
    step = WIDTH / max(len(counts), 1)
    return "".join(_bar(number * step, step * _FILLED, height / top) for number, height in enumerate(heights) if height)


def _bar(left: float, width: float, share: float) -> str:
    top = min(HEIGHT * (1 - share), HEIGHT - 1)
    return f"M{_short(left)} {HEIGHT}V{_short(top)}H{_short(left + width)}V{HEIGHT}Z"


def _height(count: float, *, logarithmic: bool) -> float:
    return math.log1p(count) if logarithmic else float(count)


def _short(number: float) -> str:
    """Return a coordinate without needless digits.

    >>> _short(12.0), _short(12.345)
    ('12', '12.3')
    """
    return f"{number:.{_DIGITS}f}".removesuffix(".0")


MOST_BYTES = 300_000
_TEMPLATE = "html/record_detail.j2"
_TOP = 3


@dataclass(frozen=True)
class AxisView:
    """One axis: its number and size, its picture, and its largest positions in words."""

    number: int
    size: int
    picture: Picture
    top: str


@dataclass(frozen=True)
class View:
    """One record in full, as the template takes it.

    Attributes:
        index: Number of its row in the report.
        row: Its measure and status.
        of: Its detail.
        where: Where the error is, in one sentence.
        sides: Lines of the table of both sides.
        values: Histograms of the values of both sides, laid upon each other.
        errors: Histogram of ``|error|``.
        ulps: Histogram of distances in units in the last place, ``None`` of integers.
        axes: Where along each axis the squared error is.
        tables: Titles of tables of elements -> elements.
    """

    index: int
    row: Row
    of: RecordDetail
    where: str
    sides: Sequence[tuple[str, str, str, str]]
    values: Picture | None = None
    errors: Picture | None = None
    ulps: Picture | None = None
    axes: tuple[AxisView, ...] = ()
    tables: Mapping[str, Sequence[Element]] | None = None


def rendered(model: ReportModel, templates: jinja2.Environment) -> dict[str, list[Markup]]:
    """Return each record in full as HTML, by its role, as many as fit into ``MOST_BYTES``; most important first."""
    index = {row.measure.record: number for number, row in reversed(list(enumerate(model.rows)))}
    template = templates.get_template(_TEMPLATE)
    found: dict[str, list[Markup]] = {}
    room = MOST_BYTES
    for of in model.details:
        if of.record not in index:
            continue
        row = model.rows[index[of.record]]
        html = template.render(view=view(index[of.record], row, of), first=not found, status_symbols=wording.STATUS_SYMBOLS)
        room -= len(html.encode("utf-8", "backslashreplace"))
        if room < 0:
            break
        found.setdefault(row.role, []).append(Markup(html))  # noqa: S704 - rendered by the escaping environment
    return found


def view(index: int, row: Row, of: RecordDetail) -> View:
    """Return what the template shows of one record."""
    lines = sides(row, of, pictures=False)[1:]
    detail = of.detail
    if detail is None:
        return View(index, row, of, of.reason, lines)
    titles = {
        "NaN, infinite or a mask's fill on one side only": detail.mismatched,
        "largest errors": detail.worst_absolute,
        "largest relative errors": detail.worst_relative,
    }
    return View(
        index=index,
        row=row,
        of=of,
        where=detail.where,
        sides=lines,
        values=_values(detail.reference, detail.target),
        errors=_errors(detail),
        ulps=_ulps(detail),
        axes=tuple(_axes(detail)),
        tables={title: elements for title, elements in titles.items() if elements},
    )


def _values(reference: Description, target: Description) -> Picture | None:
    counts = reference.values.counts, target.values.counts
    largest = max((count for side in counts for count in side), default=0)
    if not largest:
        return None
    low, high = wording.number(reference.values.low), wording.number(reference.values.high)
    paths = tuple(outline(side, largest) for side in counts)
    return Picture(paths, low, high, f"values of both sides between {low} and {high}; heights are logarithms of counts")


def _errors(of: Detail) -> Picture | None:
    if not of.error_bins:
        return None
    low, high = wording.number(of.error_bins[0][0]), wording.number(of.error_bins[-1][1])
    told = f"sizes of errors between {low} and {high} in powers of two, {wording.plural(of.exact, 'element')} equal"
    return Picture((bars([count for _, _, count in of.error_bins]),), low, high, told)


def _ulps(of: Detail) -> Picture | None:
    if not any(count for _, high, count in of.ulps if high):
        return None
    low, high = of.median_ulps
    median = wording.count(low) if low == high else f"{wording.count(low)} to {wording.count(high)}"
    last = wording.count(of.ulps[-1][1])
    path = bars([count for _, _, count in of.ulps])
    return Picture((path,), "0", last, f"units in the last place, classes that double in width; median {median}")


def _axes(of: Detail) -> Sequence[AxisView]:
    found = []
    for axis in of.axes:
        if axis.size < 2 or not axis.top:
            continue
        top = ", ".join(
            f"{first if first == last else f'{first} to {last}'}: {percent(share)}" for first, last, share in axis.top[:_TOP]
        )
        told = f"share of the squared error along axis {axis.number}"
        picture = Picture((bars(axis.profile, logarithmic=False),), "0", str(axis.size - 1), told)
        found.append(AxisView(axis.number, axis.size, picture, top))
    return found

"""The section "A closer look" of the page: single records in full, as many as fit, with their pictures as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from precflow import numbers
from precflow.comparison.detail.axis_patterns import format_percent
from precflow.comparison.detail.description import Description
from precflow.comparison.detail.detail import Detail, Element
from precflow.comparison.detail.record import RecordDetail
from precflow.report import wording
from precflow.report.model import ReportModel, Row
from precflow.report.screens.two_records import compare_facts, describe_median

MOST_BYTES = 300_000  # of all records together; a page is sent by mail
WIDTH, HEIGHT = 360, 72  # of a picture, in its own coordinates; the page scales it
_TEMPLATE = "html/record_detail.j2"
_LARGEST_SHARES = 3  # positions of an axis that are named below its picture
_BAR_WIDTH = 0.9  # of the room that a bar has, so that bars stand apart


@dataclass(frozen=True)
class Picture:
    """A small histogram or profile: SVG paths in a box of ``WIDTH`` by ``HEIGHT``, the origin at the top left.

    Attributes:
        paths: One for each series. Numbers and letters of SVG only, so that the template need not escape them.
        low: Text below the left edge.
        high: Text below the right edge.
        summary: The picture in one sentence, for those who cannot see it.
    """

    paths: tuple[str, ...]
    low: str
    high: str
    summary: str


@dataclass(frozen=True)
class AxisView:
    """One axis: its number and size, its picture, and in words the positions that carry most of the error."""

    number: int
    size: int
    picture: Picture
    top: str


@dataclass(frozen=True)
class DetailView:
    """One record in full, as the template needs it.

    Attributes:
        index: Number of its row in the report.
        row: Its measure and status.
        of: Its comparison in full.
        where: Where the error is, in one sentence.
        sides: Lines of the table of both sides.
        values: Histograms of the values of both sides, one over the other.
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


def render(model: ReportModel, templates: jinja2.Environment) -> dict[str, list[Markup]]:
    """Return role -> the records of that role in full as HTML, most important first, as many as fit into ``MOST_BYTES``."""
    # Reversed, so that of several records with one identity the first one wins.
    index = {row.measure.record: number for number, row in reversed(list(enumerate(model.rows)))}
    template = templates.get_template(_TEMPLATE)
    by_role: dict[str, list[Markup]] = {}
    room = MOST_BYTES
    for detail in model.details:
        if detail.record not in index:
            continue
        row = model.rows[index[detail.record]]
        view = view_detail(index[detail.record], row, detail)
        html = template.render(view=view, first=not by_role, status_symbols=wording.STATUS_SYMBOLS)
        room -= len(html.encode("utf-8", "backslashreplace"))
        if room < 0:
            break
        by_role.setdefault(row.role, []).append(Markup(html))  # noqa: S704 - rendered by the escaping environment
    return by_role


def view_detail(index: int, row: Row, of: RecordDetail) -> DetailView:
    """Return what the template shows of one record."""
    lines = compare_facts(row, of, pictures=False)[1:]
    detail = of.detail
    if detail is None:
        return DetailView(index, row, of, of.reason, lines)
    titles = {
        "NaN, infinite or a mask's fill on one side only": detail.mismatched,
        "largest errors": detail.worst_absolute,
        "largest relative errors": detail.worst_relative,
    }
    views = []
    for axis in detail.axes:
        if axis.size < 2 or not axis.top:
            continue
        top = ", ".join(
            f"{first if first == last else f'{first} to {last}'}: {format_percent(share)}"
            for first, last, share in axis.top[:_LARGEST_SHARES]
        )
        summary = f"share of the squared error along axis {axis.number}"
        picture = Picture((draw_bars(axis.profile, logarithmic=False),), "0", str(axis.size - 1), summary)
        views.append(AxisView(axis.number, axis.size, picture, top))
    return DetailView(
        index=index,
        row=row,
        of=of,
        where=detail.where,
        sides=lines,
        values=_picture_values(detail.reference, detail.target),
        errors=_picture_errors(detail),
        ulps=_picture_ulps(detail),
        axes=tuple(views),
        tables={title: elements for title, elements in titles.items() if elements},
    )


def _picture_values(reference: Description, target: Description) -> Picture | None:
    counts = reference.values.counts, target.values.counts
    largest = max((count for side in counts for count in side), default=0)
    if not largest:
        return None
    low, high = numbers.number(reference.values.low), numbers.number(reference.values.high)
    paths = tuple(draw_outline(side, largest) for side in counts)
    return Picture(paths, low, high, f"values of both sides between {low} and {high}; heights are logarithms of counts")


def _picture_errors(detail: Detail) -> Picture | None:
    if not detail.error_bins:
        return None
    low, high = numbers.number(detail.error_bins[0][0]), numbers.number(detail.error_bins[-1][1])
    equal = numbers.plural(detail.exact, "element")
    summary = f"sizes of errors between {low} and {high} in powers of two, {equal} equal"
    return Picture((draw_bars([count for _, _, count in detail.error_bins]),), low, high, summary)


def _picture_ulps(detail: Detail) -> Picture | None:
    if not any(count for _, high, count in detail.ulps if high):
        return None
    path = draw_bars([count for _, _, count in detail.ulps])
    summary = f"units in the last place, classes that double in width; median {describe_median(detail)}"
    return Picture((path,), "0", numbers.count(detail.ulps[-1][1]), summary)


def draw_outline(counts: Sequence[float], largest: float = 0.0, *, logarithmic: bool = True) -> str:
    """Return the outline of a histogram as one closed SVG path.

    Args:
        counts: Heights, 0 or more.
        largest: What fills the whole height; the largest count by default.
        logarithmic: Heights are logarithms of ``1 + count``.

    >>> draw_outline([1, 0], logarithmic=False)
    'M0 72V0H180V72H360V72Z'
    """
    if not counts:
        return ""
    top = _height(largest or max(counts), logarithmic=logarithmic)
    step = WIDTH / len(counts)
    parts = [f"M0 {HEIGHT}"]
    for number, count in enumerate(counts):
        share = _height(count, logarithmic=logarithmic) / top if top else 0.0
        parts.append(f"V{_coordinate(HEIGHT * (1 - share))}H{_coordinate(step * (number + 1))}")
    return "".join([*parts, f"V{HEIGHT}Z"])


def draw_bars(counts: Sequence[float], *, logarithmic: bool = True) -> str:
    """Return single bars with gaps between them as one SVG path; a count above 0 is at least one unit high, so that it shows.

    >>> draw_bars([2, 0, 1], logarithmic=False)
    'M0 72V0H108V72ZM240 72V36H348V72Z'
    """
    heights = [_height(count, logarithmic=logarithmic) for count in counts]
    largest = max(heights, default=0.0)
    step = WIDTH / max(len(counts), 1)
    bars = []
    for number, height in enumerate(heights):
        if height:
            left = number * step
            top = min(HEIGHT * (1 - height / largest), HEIGHT - 1)
            bars.append(f"M{_coordinate(left)} {HEIGHT}V{_coordinate(top)}H{_coordinate(left + step * _BAR_WIDTH)}V{HEIGHT}Z")
    return "".join(bars)


def _height(count: float, *, logarithmic: bool) -> float:
    return math.log1p(count) if logarithmic else float(count)


def _coordinate(number: float) -> str:
    """Return a coordinate with at most one decimal, because a page has hundreds of them.

    >>> _coordinate(12.0), _coordinate(12.345)
    ('12', '12.3')
    """
    return f"{number:.1f}".removesuffix(".0")

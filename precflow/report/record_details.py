"""The section "A closer look" of the page: single records in full, as many as fit, with their pictures as inline SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from precflow import numbers
from precflow.comparison.detail.axis_patterns import format_percent
from precflow.comparison.detail.description import Description
from precflow.comparison.detail.detail import Detail, Element
from precflow.comparison.detail.heat_map import HeatMap
from precflow.comparison.detail.quantiles import ErrorQuantiles
from precflow.comparison.detail.record import RecordDetail
from precflow.report import wording
from precflow.report.model import ReportModel, Row
from precflow.report.screens.two_records import compare_facts, describe_median

MOST_BYTES = 300_000  # of all records together; a page is sent by mail
WIDTH, HEIGHT = 360, 72  # of a picture, in its own coordinates; the page scales it
_TEMPLATE = "html/record_detail.j2"
QUANTILES = 200  # width and height of the picture of quantiles
HEAT_LEVELS = 6
_ATTENTION = re.compile("att(ention|n)", re.IGNORECASE)
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
class HeatView:
    """The squared error over two axes as SVG, a unit square for each cell.

    Attributes:
        rows: Cells downwards.
        columns: Cells to the right.
        paths: Level of the error, 1 to ``HEAT_LEVELS`` -> its cells; those without a level are not drawn.
        down: What goes downwards, in words.
        right: What goes to the right.
        summary: The picture in one sentence.
    """

    rows: int
    columns: int
    paths: Mapping[int, str]
    down: str
    right: str
    summary: str


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
        heat: The squared error over two axes.
        quantiles: Errors against the reference's own, both on the same logarithmic scale.
        measured: Both were measured against float64; else those of the reference are of one rounding of its values.
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
    heat: HeatView | None = None
    quantiles: Picture | None = None
    measured: bool = False
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
        heat=_picture_heat(detail.heat, row) if detail.heat else None,
        quantiles=_picture_quantiles(detail.quantiles) if detail.quantiles else None,
        measured=detail.quantiles is not None and detail.quantiles.measured,
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


def _picture_heat(heat: HeatMap, row: Row) -> HeatView:
    """Return the picture: the darker a cell, the larger the mean squared error of its positions."""
    (down, right), (rows, columns) = heat.sizes, (len(heat.shares), len(heat.shares[0]))
    means = {
        (line, column): share / (_count_stretch(line, rows, down) * _count_stretch(column, columns, right))
        for line, shares in enumerate(heat.shares)
        for column, share in enumerate(shares)
    }
    worst = max(means, key=lambda cell: means[cell])
    cells: dict[int, list[str]] = {}
    for (line, column), mean in means.items():
        level = math.ceil(HEAT_LEVELS * mean / means[worst] - 0.5)  # a twelfth of the largest is nearly nothing
        if level > 0:
            cells.setdefault(level, []).append(f"M{column} {line}h1v1h-1z")
    names = _name_axes(heat, row)
    texts = [f"{name}, {numbers.count(size)} positions" for name, size in zip(names, heat.sizes, strict=True)]
    places = _name_stretch(worst[0], rows, down), _name_stretch(worst[1], columns, right)
    at = " and ".join(f"{name} {place}" for name, place in zip(names, places, strict=True))
    summary = f"squared error over two axes, largest at {at}: {format_percent(heat.shares[worst[0]][worst[1]])}"
    paths = {level: "".join(cells[level]) for level in sorted(cells)}
    return HeatView(rows, columns, paths, texts[0], texts[1], summary)


def _name_axes(heat: HeatMap, row: Row) -> tuple[str, str]:
    """Return what two axes are called; those of attention's four are heads and tokens."""
    attention = _ATTENTION.search(row.measure.module.rpartition(".")[2]) or "attention" in row.measure.operator
    if attention and len(row.measure.reference_shape) == len(("batch", "head", "token", "width")):
        return f"head (axis {heat.axes[0]})", f"token (axis {heat.axes[1]})"
    return f"axis {heat.axes[0]}", f"axis {heat.axes[1]}"


def _name_stretch(cell: int, cells: int, size: int) -> str:
    """Return the positions that a cell stands for.

    >>> _name_stretch(3, 12, 12), _name_stretch(1, 16, 77)
    ('3', '5 to 9')
    """
    first = -(-cell * size // cells)
    last = first + _count_stretch(cell, cells, size) - 1
    return str(first) if first == last else f"{first} to {last}"


def _count_stretch(cell: int, cells: int, size: int) -> int:
    """Return how many positions a cell stands for."""
    return -(-(cell + 1) * size // cells) + (-cell * size // cells)


def _picture_quantiles(of: ErrorQuantiles) -> Picture | None:
    pairs = [(own, found) for own, found in zip(of.own, of.found, strict=True) if own > 0 and found > 0]
    if not pairs:
        return None
    low, high = (ends(math.log10(size) for pair in pairs for size in pair) for ends in (min, max))
    room = max((high - low) * 0.05, 0.1)  # a point at an end would be half outside
    low, high = low - room, high + room

    def place(size: float) -> float:
        """Return where a size lies between both ends, 0 to 1."""
        return (math.log10(size) - low) / (high - low)

    points = "".join(
        f"M{_coordinate(QUANTILES * place(own) - 2)} {_coordinate(QUANTILES * (1 - place(found)) - 2)}h4v4h-4z"
        for own, found in pairs
    )
    summary = f"half of the errors are above {numbers.number(of.median_found)}"
    if of.median_own:
        whose = "the reference" if of.measured else "one rounding"
        summary += f", {numbers.number(of.median_found / of.median_own)} times those of {whose}"
    summary += f"; the largest is {numbers.number(of.found[-1])}"
    if of.own[-1]:
        summary += f", {numbers.number(of.found[-1] / of.own[-1])} times"
    return Picture((f"M0 {QUANTILES}L{QUANTILES} 0", points), numbers.number(10**low), numbers.number(10**high), summary)


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

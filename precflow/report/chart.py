"""What the picture of the error along the network shows; the page draws it (reason for that: docs/report.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from precflow.metrics import find_metric
from precflow.report import wording
from precflow.report.highlights import roles
from precflow.report.model import ReportModel, Row
from precflow.report.tree import levels

PREFERRED = "relative_l2"
ENOUGH_GROUPS = 4  # fewer tell nothing, so that the next depth is shown however many it has
MOST_GROUPS = 18
MOST_LEVELS = 16  # of modules inside each other; nobody looks for a part of the network further in
_UNDRAWN = frozenset({"not_judged", "sampled_out"})


@dataclass(frozen=True)
class Chart:
    """The picture, without its points: those are the rows.

    Attributes:
        metric: What is drawn upwards, on a logarithmic scale.
        decades: Lowest and highest power of ten on the scale.
        groups: ``(label, index of its first row)`` along the network.
        summary: The picture in one sentence, for those who cannot see it.
    """

    metric: str
    decades: tuple[int, int]
    groups: tuple[tuple[str, int], ...]
    summary: str


def build(model: ReportModel) -> Chart:
    """Return the chart of a run."""
    metric = chart_metric(model)
    return Chart(metric, decades(model.rows, metric), groups(model.rows), summary(model, metric))


def drawn(row: Row) -> bool:
    """Tell whether a row is a point of the picture."""
    return row.judged.status not in _UNDRAWN


def chart_metric(model: ReportModel) -> str:
    """Return the error to draw: ``relative_l2`` where there is one, else the first error among the shown columns."""
    present = Counter(metric for row in model.rows for metric in row.measure.metrics)
    errors = [metric for metric in (PREFERRED, *model.columns, *sorted(present)) if not find_metric(metric).at_least]
    return next((metric for metric in errors if present[metric]), PREFERRED)


def decades(rows: Sequence[Row], metric: str) -> tuple[int, int]:
    """Return the powers of ten that hold every finite positive error and every limit; at least three of them."""
    errors = [row.measure.metrics.get(metric, 0.0) for row in rows if drawn(row)]
    limits = [row.judged.limit for row in rows if row.judged.metric == metric]
    sizes = [math.log10(value) for value in (*errors, *limits) if 0 < value < math.inf]
    low, high = (math.floor(min(sizes)), math.ceil(max(sizes))) if sizes else (-6, 0)
    return low - max(0, 3 - (high - low)), high


def groups(rows: Sequence[Row]) -> tuple[tuple[str, int], ...]:
    """Return the parts of the network under the picture: as deep as there is room for, or as zooming in will make room."""
    path_of = {module: levels(module)[:MOST_LEVELS] for module in {row.measure.module for row in rows}}
    paths = [path_of[row.measure.module] for row in rows]
    found = _runs(paths, 1)
    for depth in range(2, max((len(path) for path in paths), default=0) + 1):
        deeper = _runs(paths, depth)
        if len(deeper) > MOST_GROUPS and len(found) >= ENOUGH_GROUPS:
            break
        found = deeper
    return tuple(found)


def _runs(paths: Sequence[Sequence[str]], depth: int) -> list[tuple[str, int]]:
    """Return where the part of this depth changes; rows that stand above this depth belong to what runs around them."""
    runs: list[tuple[str, int]] = []
    previous: Sequence[str] = ()
    for index, path in enumerate(paths):
        part = path[:depth]
        if part and part != previous and not (len(part) < depth and list(previous[: len(part)]) == list(part)):
            runs.append((part[-1], index))
            previous = part
    return runs


def summary(model: ReportModel, metric: str) -> str:
    """Return the picture in words."""
    counted = roles(model)
    told = ", ".join(f"{wording.count(counted[role])} {role}" for role in wording.ROLE_MEANINGS if counted[role])
    return (
        f"{metric} of {wording.plural(sum(counted.values()), 'record')} in order of the network: {told or 'nothing to show'}."
    )

"""The picture "Error along the network": its scale, its labels and its words. The page's script draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precflow import numbers
from precflow.metrics import find_metric
from precflow.report import wording
from precflow.report.highlights import count_roles, is_judged
from precflow.report.model import ReportModel, Row
from precflow.report.tree import split_levels

PREFERRED = "relative_l2"
ENOUGH_GROUPS = 4  # with fewer labels the next depth is shown, however many it has
MOST_GROUPS = 18  # labels below the picture
MOST_SPANS = 2_000  # of steps, phases or parts of the model; more of them are narrower than a pixel
MOST_LEVELS = 16  # of modules inside each other; labels do not go deeper


@dataclass(frozen=True)
class Chart:
    """The frame of the picture; its points are the rows of the report.

    Attributes:
        metric: What is drawn upwards, on a logarithmic scale.
        decades: Lowest and highest exponent of ten on the scale.
        groups: Labels along the network: ``(part of the model, index of its first row)``.
        steps: Where each step begins: ``(its label, index of its first row)``.
        phases: Where each phase begins, the same way: a step of training has several.
        summary: The picture in one sentence, for those who cannot see it.
    """

    metric: str
    decades: tuple[int, int]
    groups: tuple[tuple[str, int], ...]
    steps: tuple[tuple[str, int], ...]
    phases: tuple[tuple[str, int], ...]
    summary: str


def build_chart(model: ReportModel) -> Chart:
    """Return the chart of a run."""
    metric = choose_metric(model)
    steps = _find_runs([_describe_step(row.measure.record) for row in model.rows])
    phases = _find_runs([row.measure.phase for row in model.rows])
    return Chart(metric, find_decades(model.rows, metric), choose_groups(model.rows), steps, phases, summarize(model, metric))


def _describe_step(record: str) -> str:
    """Return the step that an identity ends with, in words, and the rank where it is not the first.

    >>> _describe_step("fc/linear.0/forward.output.0"), _describe_step("fc/linear.0/forward.output.0@2.1")
    ('step 0', 'step 2, rank 1')
    """
    step, _, rank = record.rpartition("@")[2].partition(".") if "@" in record else ("0", "", "0")
    return f"step {step}" if rank == "0" else f"step {step}, rank {rank}"


def _find_runs(labels: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return where another label begins, with the index of its first row; nothing if they alternate too often to be drawn."""
    starts = [index for index, label in enumerate(labels) if index == 0 or label != labels[index - 1]]
    return tuple((labels[index], index) for index in starts) if len(starts) <= MOST_SPANS else ()


def choose_metric(model: ReportModel) -> str:
    """Return the error to draw: ``relative_l2`` if any row has it, else the first of the shown columns that is an error."""
    present = Counter(metric for row in model.rows for metric in row.measure.metrics)
    errors = [metric for metric in (PREFERRED, *model.columns, *sorted(present)) if not find_metric(metric).at_least]
    return next((metric for metric in errors if present[metric]), PREFERRED)


def find_decades(rows: Sequence[Row], metric: str) -> tuple[int, int]:
    """Return the exponents of ten between which every finite positive error and every limit lies; at least three apart."""
    errors = [row.measure.metrics.get(metric, 0.0) for row in rows if is_judged(row)]
    limits = [row.judged.limit for row in rows if row.judged.metric == metric]
    sizes = [math.log10(value) for value in (*errors, *limits) if 0 < value < math.inf]
    low, high = (math.floor(min(sizes)), math.ceil(max(sizes))) if sizes else (-6, 0)
    return low - max(0, 3 - (high - low)), high


def choose_groups(rows: Sequence[Row]) -> tuple[tuple[str, int], ...]:
    """Return the labels below the picture: parts of the model, as deep as their number stays readable.

    For example ``encoder.layers.0``, ``encoder.layers.1``...: the next depth (``self_attn``, ``mlp``) would be too many.
    """
    path_of = {module: split_levels(module)[:MOST_LEVELS] for module in {row.measure.module for row in rows}}
    paths = [path_of[row.measure.module] for row in rows]
    starts = _find_starts(paths, 1)
    for depth in range(2, max((len(path) for path in paths), default=0) + 1):
        deeper = _find_starts(paths, depth)
        if len(deeper) > MOST_GROUPS and len(starts) >= ENOUGH_GROUPS:
            break
        starts = deeper
    named = _name_parts(starts)
    return tuple(named[:: -(-len(named) // MOST_SPANS)]) if named else ()


def _name_parts(starts: Sequence[tuple[tuple[str, ...], int]]) -> list[tuple[str, int]]:
    """Return parts of the model by the ends of their paths, as long as it takes to tell them apart.

    >>> _name_parts([(("encoder", "layers.0"), 0), (("decoder", "layers.0"), 7), (("decoder", "norm"), 9)])
    [('encoder.layers.0', 0), ('decoder.layers.0', 7), ('norm', 9)]
    """
    alike: dict[str, set[tuple[str, ...]]] = {}
    for path, _ in starts:
        alike.setdefault(path[-1], set()).add(path)
    name_of = {}
    for paths in alike.values():
        for path in paths:
            others = paths - {path}
            length = next(size for size in range(1, len(path) + 1) if size == len(path) or _ends_alone(path, size, others))
            name_of[path] = ".".join(path[-length:])
    return [(name_of[path], index) for path, index in starts]


def _ends_alone(path: tuple[str, ...], size: int, others: Iterable[tuple[str, ...]]) -> bool:
    return all(other[-size:] != path[-size:] for other in others)


def _find_starts(paths: Sequence[Sequence[str]], depth: int) -> list[tuple[tuple[str, ...], int]]:
    """Return where the part of the model at this depth changes; a row of a module above this depth starts no new part."""
    runs: list[tuple[tuple[str, ...], int]] = []
    previous: Sequence[str] = ()
    for index, path in enumerate(paths):
        part = path[:depth]
        if part and part != previous and not (len(part) < depth and list(previous[: len(part)]) == list(part)):
            runs.append((tuple(part), index))
            previous = part
    return runs


def summarize(model: ReportModel, metric: str) -> str:
    """Return the picture in one sentence, for readers who cannot see it."""
    counted = count_roles(model)
    listed = ", ".join(f"{numbers.count(counted[role])} {role}" for role in wording.ROLE_MEANINGS if counted[role])
    return (
        f"{metric} of {numbers.plural(sum(counted.values()), 'record')} in order of the network: {listed or 'nothing to show'}."
    )

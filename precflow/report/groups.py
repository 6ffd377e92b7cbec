"""The records of a result by module, operator, type and phase: how many failed, and how much of their limits they use."""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from precflow import numbers
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report import highlights
from precflow.report.model import GroupRow
from precflow.report.row import Row
from precflow.report.tree import split_levels

KINDS = ("module", "operator", "type", "phase")
LEVELS = 2  # of a module's path: `encoder`, `encoder.layers.0`; with more, lists become too long to read
MOST = 100  # groups of a kind; those that fail most


def group_rows(rows: Sequence[Row], most: int = MOST) -> tuple[GroupRow, ...]:
    """Return the judged records by each of ``KINDS``.

    Modules in which something failed or is in doubt come first, in order of the network. Of the other kinds the groups that
    fail most come first; one of which nothing failed stands by how near to its limits it comes.

    Args:
        rows: The records.
        most: Groups of each kind at most.
    """
    judged = [row for row in rows if highlights.is_judged(row)]
    if not judged:
        return ()
    names_of = {
        "module": [find_module(row) for row in judged],
        "operator": [row.measure.operator for row in judged],
        "type": [_describe_types(row) for row in judged],
        "phase": [row.measure.phase for row in judged],
    }
    return tuple(group for by in KINDS for group in _group(by, judged, names_of[by])[:most])


def find_module(row: Row) -> str:
    """Return the module of the first ``LEVELS`` levels that a record belongs to; ``(model)`` is the model itself."""
    return shorten(row.measure.module)


@functools.lru_cache(maxsize=1 << 16)  # records are many, modules are few
def shorten(module: str) -> str:
    """Return the first ``LEVELS`` levels of a module's path.

    >>> shorten("encoder.layers.0.mlp.fc1"), shorten("")
    ('encoder.layers.0', '(model)')
    """
    return ".".join(split_levels(module)[:LEVELS]) or "(model)"


def _group(by: str, rows: Sequence[Row], names: Sequence[str]) -> list[GroupRow]:
    members: dict[str, list[Row]] = defaultdict(list)
    for row, name in zip(rows, names, strict=True):
        if name:  # an output of a module has no operator
            members[name].append(row)
    groups = [_sum_up(by, name, of_group) for name, of_group in members.items()]
    if by == "module":  # an error that is handed on fails most at the end, and begins at the first
        return sorted(groups, key=lambda group: not (group.failed or group.in_doubt))
    return sorted(
        groups, key=lambda group: (group.failed, -1.0 if group.worst is None else group.worst, group.in_doubt), reverse=True
    )


def _sum_up(by: str, name: str, rows: Sequence[Row]) -> GroupRow:
    ratios = [(ratio, row) for row in rows if not math.isnan(ratio := _find_ratio(row))]
    worst = max(ratios, key=lambda pair: pair[0], default=None)
    return GroupRow(
        by=by,
        name=name,
        records=len(rows),
        failed=sum(row.judged.status in MISALIGNED_STATUSES for row in rows),
        in_doubt=sum(row.judged.status in INCOMPLETE_STATUSES for row in rows),
        worst=None if worst is None else worst[0],
        median=statistics.median(ratio for ratio, _ in ratios) if ratios else None,
        record="" if worst is None else worst[1].measure.name,
        metric="" if worst is None else worst[1].judged.metric,
    )


def _find_ratio(row: Row) -> float:
    """Return how much of its limit a record uses; ``NaN`` if it has none."""
    ratio = highlights.ratio_of(row)
    return ratio if row.judged.metric or ratio == math.inf else math.nan


def _describe_types(row: Row) -> str:
    """Return the element types of both sides, once if they are the same.

    One side alone has a record without a partner.
    """
    types = dict.fromkeys(filter(None, (row.measure.reference_dtype, row.measure.target_dtype)))
    return " -> ".join(types)


def choose_shown(groups: Sequence[GroupRow], most: int, *, in_trouble: bool = False) -> list[tuple[str, list[GroupRow], int]]:
    """Return what a screen or a page shows: of each kind its name, its first groups, and how many are left out.

    A kind with one group alone is left out, because that group is all records.

    Args:
        groups: Of all kinds.
        most: Groups to show of a kind.
        in_trouble: Leave out groups of which no record failed or is in doubt.
    """
    shown = []
    for kind in KINDS:
        every = [group for group in groups if group.by == kind]
        wanted = [group for group in every if group.failed or group.in_doubt] if in_trouble else every
        if len(every) > 1 and wanted:
            shown.append((kind, wanted[:most], len(wanted) - len(wanted[:most])))
    return shown


def describe_share(share: float | None) -> str:
    """Return a share of a limit for a table: ``""`` if no record of the group has a limit, ``no number`` for infinity.

    >>> describe_share(None), describe_share(0.62), describe_share(math.inf)
    ('', '62 %', 'no number')
    """
    if share is None:
        return ""
    return "no number" if math.isinf(share) else numbers.factor(share)

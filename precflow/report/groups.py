"""The records of a result by module, operator, type and phase: how many failed, and how much of their limits they use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precflow import numbers
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report import highlights
from precflow.report.model import GroupRow
from precflow.report.row import Row
from precflow.report.tree import split_levels

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("module", "operator", "type", "phase")
LEVELS = 2  # of a module's path, as in JUnit
MOST = 100  # groups of a kind; those that fail most


def group_rows(rows: Sequence[Row], most: int = MOST) -> tuple[GroupRow, ...]:
    """Return the judged records by each of ``KINDS``.

    Modules in which something failed or is in doubt come first, in order of the network. Of the other kinds the groups that
    fail most come first; one of which nothing failed stands by how near to its limits it comes.

    Args:
        rows: The records.
        most: Groups of each kind at most.
    """
    import pandas as pd  # noqa: PLC0415  takes half a second, and what compares nothing does without

    judged = [row for row in rows if highlights.is_judged(row)]
    if not judged:
        return ()
    modules = {
        module: ".".join(split_levels(module)[:LEVELS]) or "(model)" for module in {row.measure.module for row in judged}
    }
    names_of = {
        "module": [modules[row.measure.module] for row in judged],
        "operator": [row.measure.operator for row in judged],
        "type": [_describe_types(row) for row in judged],
        "phase": [row.measure.phase for row in judged],
    }
    frame = pd.DataFrame(
        {
            **{kind: _number(names) for kind, names in names_of.items()},
            "failed": [row.judged.status in MISALIGNED_STATUSES for row in judged],
            "in_doubt": [row.judged.status in INCOMPLETE_STATUSES for row in judged],
            "place": range(len(judged)),
            "ratio": [_find_ratio(row) for row in judged],
        }
    )
    frame["known"] = frame["ratio"].fillna(-1.0)  # of a group that has numbers only, pandas finds the place of the largest
    return tuple(group for by in KINDS for group in _group(frame, by, judged, names_of[by])[:most])


def _number(names: Sequence[str]) -> list[int]:
    """Return for each name at which place it stands first: a number in place of a text, whatever letters it has."""
    first: dict[str, int] = {}
    return [first.setdefault(name, place) for place, name in enumerate(names)]


def _group(frame: pd.DataFrame, by: str, rows: Sequence[Row], names: Sequence[str]) -> list[GroupRow]:
    groups = frame.groupby(by)
    ratios = groups["ratio"]
    table = (
        groups[["failed", "in_doubt"]]
        .sum()
        .assign(records=groups.size(), worst=ratios.max(), median=ratios.median(), at=groups["known"].idxmax())
    )
    if by == "module":  # an error that is handed on fails most at the end, and begins at the first
        table = table.assign(trouble=table["failed"] + table["in_doubt"] > 0, first=groups["place"].min())
        table = table.sort_values(["trouble", "first"], ascending=[False, True])
    else:
        table = table.sort_values(["failed", "worst", "in_doubt"], ascending=False, kind="stable")
    return [
        GroupRow(
            by=by,
            name=names[int(str(first))],
            records=int(one["records"]),
            failed=int(one["failed"]),
            in_doubt=int(one["in_doubt"]),
            worst=_or_none(one["worst"]),
            median=_or_none(one["median"]),
            record="" if _or_none(one["worst"]) is None else rows[int(one["at"])].measure.name,
        )
        for first, one in table.to_dict("index").items()
        if names[int(str(first))]  # an output of a module has no operator
    ]


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


def _or_none(number: Any) -> float | None:
    return None if math.isnan(number) else float(number)


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

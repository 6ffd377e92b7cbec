"""The few rows and counts that a reader is shown first."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, STATUSES
from precflow.report.model import ReportModel, Row

# Worst first: what must catch the eye when many records share one place.
SEVERITY: tuple[str, ...] = (
    "fail",
    "nonfinite",
    "shape",
    "dtype",
    "unreadable",
    "undecided",
    "unpaired_reference",
    "unpaired_target",
    "blind",
    "accepted",
    "pass",
    "sampled_out",
    "not_judged",
)
_UNJUDGED = frozenset({"not_judged", "sampled_out"})
_SPREAD, _SPREAD_OVER = 2654435761, 1 << 32  # multiples of the first lie evenly over the second: a sample, the same in each run
_RANK = {status: rank for rank, status in enumerate(SEVERITY)}
assert set(SEVERITY) == set(STATUSES), "every status has its place"


def severity(status: str) -> int:
    """Return the rank of a status, 0 for the worst; one that nobody knows ranks before all others."""
    return _RANK.get(status, -1)


def worst_status(statuses: Sequence[str]) -> str:
    """Return the worst of some statuses, ``not_judged`` of none.

    >>> worst_status(["pass", "fail", "blind"]), worst_status([])
    ('fail', 'not_judged')
    """
    return min(statuses, key=severity, default="not_judged")


def ratio_of(row: Row) -> float:
    """Return how much of its limit a row uses; infinity where NaN, shape or dtype stand in the way of a number."""
    if row.judged.status in MISALIGNED_STATUSES - {"fail"} or math.isnan(row.judged.ratio):
        return math.inf
    return row.judged.ratio


def importance(row: Row) -> tuple[int, int, float]:
    """Return what records are sorted by for a reader who wants to know what is wrong; the page's script has the same.

    Those that introduce the error come first, then those that fail, by how far they are over their limits; then what is in
    doubt, by severity; then what passes, closest to its limit first; at last what was not judged. Ratios count with the four
    digits that the page has of them, so that records which look alike stay in order of the graph.
    """
    status = row.judged.status
    if status in MISALIGNED_STATUSES:
        place = 0 if row.role == "introduces" else 1
    else:
        place = {"pass": 3, "sampled_out": 4, "not_judged": 4}.get(status, 2)
    return place, severity(status) if place == 2 else 0, -float(f"{ratio_of(row):.4g}")


def first_rows(model: ReportModel, most: int) -> list[tuple[int, Row]]:
    """Return the rows that a reader is shown first, most important first, each with its number in the report."""
    return heapq.nsmallest(most, enumerate(model.rows), key=lambda numbered: importance(numbered[1]))


def worst_rows(model: ReportModel, most: int) -> list[Row]:
    """Return the misaligned rows, those that introduce the error first, then those furthest over their limit."""
    wrong = [row for row in model.rows if row.judged.status in MISALIGNED_STATUSES]
    return heapq.nsmallest(most, wrong, key=importance)


def furthest_row(model: ReportModel) -> Row | None:
    """Return the failing row that is furthest over its limit, or ``None`` where none fails with a number."""
    failing = [row for row in model.rows if row.judged.status == "fail"]
    return max(failing, key=ratio_of, default=None)


def closest_row(model: ReportModel) -> Row | None:
    """Return the passing row that uses most of its limit, as the verdict names it."""
    return next((row for row in model.rows if row.measure.record == model.verdict.closest), None)


def incomplete_rows(model: ReportModel, most: int) -> list[Row]:
    """Return rows that have no partner, cannot be read or not be decided, in order of the graph."""
    return [row for row in model.rows if row.judged.status in INCOMPLETE_STATUSES][:most]


def unpaired(model: ReportModel) -> int:
    """Return the number of records that only one side has."""
    return model.verdict.counts.get("unpaired_reference", 0) + model.verdict.counts.get("unpaired_target", 0)


def roles(model: ReportModel) -> Mapping[str, int]:
    """Return role -> number of records that were judged and have it, those included that a bounded model left out."""
    return Counter(row.role for row in model.rows if row.judged.status not in _UNJUDGED) + Counter(model.roles_left_out)


def bounded(model: ReportModel, most: int) -> ReportModel:
    """Return a model with at most so many rows, in their order; the others are counted.

    Most of the room goes by :func:`importance`: to what introduces the error, what fails, what is in doubt. A part of it is the
    passing records' that come closest to their limits, and what is left is shared out among the modules, a record each.
    """
    rows = model.rows
    if len(rows) <= most:
        return model
    ranked = sorted(range(len(rows)), key=lambda number: importance(rows[number]))
    kept = set(ranked[: most * 3 // 4])
    kept.update(itertools.islice((number for number in ranked if rows[number].judged.status == "pass"), most // 8))
    seen: Counter[str] = Counter()
    others: list[tuple[int, int, int]] = []
    for number, row in enumerate(rows):
        if number not in kept:
            others.append((seen[row.measure.module], number * _SPREAD % _SPREAD_OVER, number))
        seen[row.measure.module] += 1
    kept.update(number for _, _, number in heapq.nsmallest(most - len(kept), others))
    out = (row for number, row in enumerate(rows) if number not in kept)
    return replace(
        model,
        rows=tuple(rows[number] for number in sorted(kept)),
        rows_left_out=model.rows_left_out + len(rows) - len(kept),
        roles_left_out=Counter(row.role for row in out if row.judged.status not in _UNJUDGED) + Counter(model.roles_left_out),
    )


def metrics_of(model: ReportModel) -> tuple[str, ...]:
    """Return every metric that some row has: the shown columns first, then the others by name."""
    present = {metric for row in model.rows for metric in row.measure.metrics}
    shown = tuple(dict.fromkeys(model.columns))
    return shown + tuple(sorted(present - set(shown)))

"""The few rows and counts that a reader is shown first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

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


def worst_rows(model: ReportModel, most: int) -> list[Row]:
    """Return the misaligned rows, those that introduce the error first, then those furthest over their limit."""
    wrong = [row for row in model.rows if row.judged.status in MISALIGNED_STATUSES]
    wrong.sort(key=lambda row: (row.role != "introduces", -ratio_of(row), row.measure.order))
    return wrong[:most]


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
    """Return role -> number of records that were judged and have it."""
    return Counter(row.role for row in model.rows if row.judged.status not in {"not_judged", "sampled_out"})


def metrics_of(model: ReportModel) -> tuple[str, ...]:
    """Return every metric that some row has: the shown columns first, then the others by name."""
    present = {metric for row in model.rows for metric in row.measure.metrics}
    shown = tuple(dict.fromkeys(model.columns))
    return shown + tuple(sorted(present - set(shown)))

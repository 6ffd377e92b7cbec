"""Which records a reader sees first, and how many there are of each kind."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.diagnosis.golden import GoldenRow
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, STATUSES
from precflow.report.model import ReportModel, Row

# Worst first: where many records share one mark, as in the tree of modules, the worst one is shown.
SEVERITY: tuple[str, ...] = (
    "fail",
    "nonfinite",
    "shape",
    "dtype",
    "unreadable",
    "undecided",
    "artefact",
    "unpaired_reference",
    "unpaired_target",
    "not_comparable",
    "near_tie",
    "blind",
    "covered",
    "accepted",
    "pass",
    "sampled_out",
    "not_judged",
)
_UNJUDGED = frozenset({"not_judged", "sampled_out"})
# Multiples of the first, modulo the second, are spread evenly (Fibonacci hashing): a sample that is the same in every run.
_SPREAD, _SPREAD_OVER = 2654435761, 1 << 32
_RANK = {status: rank for rank, status in enumerate(SEVERITY)}
assert set(SEVERITY) == set(STATUSES), "every status has its place"


def is_judged(row: Row) -> bool:
    """Tell whether a record was judged: data movement and records left out by sampling are shown but not counted."""
    return row.judged.status not in _UNJUDGED


def severity(status: str) -> int:
    """Return the rank of a status, 0 for the worst; an unknown status ranks before all others."""
    return _RANK.get(status, -1)


def find_worst_status(statuses: Sequence[str]) -> str:
    """Return the worst of some statuses, ``not_judged`` if there are none.

    >>> find_worst_status(["pass", "fail", "blind"]), find_worst_status([])
    ('fail', 'not_judged')
    """
    return min(statuses, key=severity, default="not_judged")


def ratio_of(row: Row) -> float:
    """Return how much of its limit a row uses; infinity if there is no number because of NaN, another shape or dtype."""
    if row.judged.status in MISALIGNED_STATUSES - {"fail"} or math.isnan(row.judged.ratio):
        return math.inf
    return row.judged.ratio


def importance(row: Row) -> tuple[int, int, float]:
    """Return the key that sorts records by importance to a reader; smaller is more important.

    Records that introduce the error come first, then those that fail, furthest over their limits first; then what is in doubt,
    by severity; then what passes, closest to its limit first; and last what was not judged. Ratios are rounded to the four
    digits that the page has of them, so that records which look equal there stay in order of the graph.
    """
    # `importance` in templates/js/records.js sorts the page's table in the same order: change both.
    status = row.judged.status
    if status in MISALIGNED_STATUSES:
        place = 0 if row.role == "introduces" else 1
    else:
        place = {"pass": 3, "covered": 4, "sampled_out": 4, "not_judged": 4}.get(status, 2)
    return place, severity(status) if place == 2 else 0, -float(f"{ratio_of(row):.4g}")


def find_first_rows(model: ReportModel, most: int) -> list[tuple[int, Row]]:
    """Return the most important rows, each with its number in the report."""
    return heapq.nsmallest(most, enumerate(model.rows), key=lambda numbered: importance(numbered[1]))


def find_worst_golden(model: ReportModel, most: int) -> list[GoldenRow]:
    """Return the records whose target is further from the golden run than the reference by the largest factor, those first."""
    return sorted(model.golden, key=lambda row: (-row.ratio, -row.target))[:most]


def find_worst_rows(model: ReportModel, most: int) -> list[Row]:
    """Return the misaligned rows, those that introduce the error first, then those furthest over their limit."""
    wrong = [row for row in model.rows if row.judged.status in MISALIGNED_STATUSES]
    return heapq.nsmallest(most, wrong, key=importance)


def find_furthest_row(model: ReportModel) -> Row | None:
    """Return the failing row that is furthest over its limit, or ``None`` if none fails."""
    failing = [row for row in model.rows if row.judged.status == "fail"]
    return max(failing, key=ratio_of, default=None)


def find_closest_row(model: ReportModel) -> Row | None:
    """Return the passing row that comes closest to its limit; the verdict names it."""
    return next((row for row in model.rows if row.measure.record == model.verdict.closest), None)


def find_incomplete_rows(model: ReportModel, most: int) -> list[Row]:
    """Return rows without a partner, unreadable ones and undecided ones, in order of the graph."""
    return [row for row in model.rows if row.judged.status in INCOMPLETE_STATUSES][:most]


def count_unpaired(model: ReportModel) -> int:
    """Return the number of records that only one side has."""
    return model.verdict.counts.get("unpaired_reference", 0) + model.verdict.counts.get("unpaired_target", 0)


def count_roles(model: ReportModel) -> Mapping[str, int]:
    """Return role -> number of judged records, including those whose rows were left out of the model."""
    return Counter(row.role for row in model.rows if is_judged(row)) + Counter(model.roles_left_out)


def keep_most_important(model: ReportModel, most: int) -> ReportModel:
    """Return the model with at most ``most`` rows, in their order; the others are only counted.

    Three quarters of the room go to the most important rows (:func:`importance`), an eighth to the passing ones that come
    closest to their limits. The rest is a sample: one row of every module, then a second one of every module, and so on.
    """
    rows = model.rows
    if len(rows) <= most:
        return model
    ranked = sorted(range(len(rows)), key=lambda number: importance(rows[number]))
    kept = set(ranked[: most * 3 // 4])
    kept.update(itertools.islice((number for number in ranked if rows[number].judged.status == "pass"), most // 8))
    # Sorting the others by how many rows of their module came before takes a first row of each module, then a second, ...
    # The spread number breaks ties evenly over the network instead of in favour of its beginning.
    seen: Counter[str] = Counter()  # rows of each module so far
    others: list[tuple[int, int, int]] = []
    for number, row in enumerate(rows):
        if number not in kept:
            others.append((seen[row.measure.module], number * _SPREAD % _SPREAD_OVER, number))
        seen[row.measure.module] += 1
    kept.update(number for _, _, number in heapq.nsmallest(most - len(kept), others))
    dropped = (row for number, row in enumerate(rows) if number not in kept)
    return replace(
        model,
        rows=tuple(rows[number] for number in sorted(kept)),
        rows_left_out=model.rows_left_out + len(rows) - len(kept),
        roles_left_out=Counter(row.role for row in dropped if is_judged(row)) + Counter(model.roles_left_out),
    )


def list_metrics(model: ReportModel) -> tuple[str, ...]:
    """Return every metric that any row has: the shown columns first, then the others by name."""
    present = {metric for row in model.rows for metric in row.measure.metrics}
    shown = tuple(dict.fromkeys(model.columns))
    return shown + tuple(sorted(present - set(shown)))

"""The few records that a report shows in full: those that fail most, as far as their tensors can be had in a few seconds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

from precflow.agent.contract import Identity, parse_identity
from precflow.comparison.detail.record import RecordDetail, examine_record
from precflow.dumps.lookup import FoundRecord, Recorded
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.report.highlights import ratio_of
from precflow.report.model import Row

MOST = 20
MOST_ELEMENTS = 1 << 25  # of all of them together; about four seconds of one processor


def worst_details(reference: Recorded, target: Recorded, rows: Sequence[Row], most: int = MOST) -> tuple[RecordDetail, ...]:
    """Return the failing records in full: those that introduce the error first, then by how far they are over their limits.

    A module and its last operator have the same tensor; it is shown once. What was not stored is left out, and so are tensors
    that are too large for a report: ``precflow compare --record`` shows those.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        rows: Every record with its status.
        most: How many.
    """
    worst = heapq.nsmallest(
        most * 4,
        (row for row in rows if row.judged.status in MISALIGNED_STATUSES and row.measure.evidence == "tensors"),
        key=lambda row: (row.role != "introduces", -ratio_of(row), row.measure.order),
    )
    names = [parse_identity(row.measure.record) for row in worst]
    pairs = (_found(dump, set(names)) for dump in (reference, target))
    left, right = pairs
    return tuple(examine_record(reference, target, left[name], right[name]) for name in _chosen(names, left, right, most))


def _chosen(
    names: Sequence[Identity], left: dict[Identity, FoundRecord], right: dict[Identity, FoundRecord], most: int
) -> Iterator[Identity]:
    """Return those that are there on both sides, are no repetition, and fit."""
    seen: set[tuple[str, str]] = set()
    room = MOST_ELEMENTS
    for name in names:
        pair = [side[name].record for side in (left, right) if name in side]
        size = sum(math.prod(record.shape) for record in pair)
        if len(pair) < 2 or not all(record.stored for record in pair) or size > room:
            continue
        contents = (pair[0].key, pair[1].key)
        if contents in seen or len(seen) == most:
            continue
        seen.add(contents)
        room -= size
        yield name


def _found(dump: Recorded, names: set[Identity]) -> dict[Identity, FoundRecord]:
    """Return the first output of each identity."""
    found: dict[Identity, FoundRecord] = {}
    modules = {name.module for name in names}
    for call in dump.calls():
        for record in call.outputs if call.module in modules else ():
            if record.identity in names:
                found.setdefault(record.identity, FoundRecord(call, record))
    return found

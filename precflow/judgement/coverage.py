"""How much was compared, and how much of it could have failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precflow.comparison.measures import Measure
from precflow.judgement.verdicts import STATUSES, Judged

COMPARED = frozenset({"pass", "fail", "blind", "accepted", "dtype", "nonfinite"})
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of records.

    Attributes:
        counts: Status -> records, in the order of ``STATUSES``, without zeros.
        total: Records that should have been compared, those without a partner included.
        compared: Records that were.
        could_fail: Compared records that are not blind.
    """

    counts: Mapping[str, int]
    total: int
    compared: int
    could_fail: int

    @property
    def coverage(self) -> float:
        """Compared over total, 0 to 1; 0 where there is nothing to compare."""
        return self.compared / self.total if self.total else 0.0


def tally(judged: Sequence[Judged]) -> Tally:
    """Count statuses."""
    found = Counter(record.status for record in judged)
    counts = {status: found[status] for status in STATUSES if found[status]}
    compared = sum(count for status, count in counts.items() if status in COMPARED)
    return Tally(counts, len(judged) - counts.get("not_judged", 0), compared, compared - counts.get("blind", 0))


def blind_phases(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Name the phases whose compared records are mostly blind, in words."""
    compared: Counter[str] = Counter()
    blind: Counter[str] = Counter()
    for measure, record in zip(measures, judged, strict=True):
        compared[measure.phase] += record.status in COMPARED
        blind[measure.phase] += record.status == "blind"
    return [
        f"{phase} is mostly blind: {blind[phase]} of {records(count)} could not have failed"
        for phase, count in compared.items()
        if blind[phase] > _MOSTLY * count
    ]


def empty_ends(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[str]:
    """Name the outputs of the last call that hold no ordinary number on both sides, in words.

    The last call is the model itself, where it was recorded. What it computed is unknown then, however well everything before
    agrees.
    """
    compared = [(measure, record) for measure, record in zip(measures, judged, strict=True) if record.status in COMPARED]
    last = max((measure.order for measure, _ in compared), default=0)
    ends = [measure.name for measure, record in compared if measure.order == last and _is_empty(measure, record)]
    holds = "has no element, or only NaN, Inf and mask fill values, on both sides"
    return [f"nothing is known about the end, {ends[0]}: it {holds}"] if ends else []


def records(count: int) -> str:
    """Return a number of records in words.

    >>> records(1), records(2)
    ('1 record', '2 records')
    """
    return f"{count} record{'s' * (count != 1)}"


def _is_empty(measure: Measure, record: Judged) -> bool:
    ordinary = measure.counts.get("elements", 0) - measure.counts.get("sentinel", 0) - measure.counts.get("nonfinite", 0)
    return record.status == "blind" and not ordinary

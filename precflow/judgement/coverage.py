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
        f"{phase} is mostly blind: {blind[phase]} of {count} records could not have failed"
        for phase, count in compared.items()
        if blind[phase] > _MOSTLY * count
    ]

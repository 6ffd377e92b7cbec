"""One record of a report: what was measured of it, its status, and its role on the graph."""

from __future__ import annotations

from dataclasses import dataclass

from precflow.comparison.measure import Measure
from precflow.judgement.verdicts import Judged


@dataclass(frozen=True, slots=True)  # slots: there may be a million of them
class Row:
    """One record: its measure, its status, its limit (for the first shown metric) and its role on the graph."""

    measure: Measure
    judged: Judged
    role: str

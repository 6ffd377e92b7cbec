"""Known differences: counted and shown instead of failed, until their last day and within their own limits."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence

from precflow.comparison.measures import Measure
from precflow.config.schema import Accepted
from precflow.judgement.limits import conditions, lacking, uses
from precflow.judgement.patterns import matches
from precflow.metrics import find_metric


class AcceptedDifferences:
    """The accepted entries of a recipe, and which of them were of use.

    Args:
        entries: In order; the first that accepts a record is named.
        today: The day that decides whether an entry has expired; the last day itself still counts.
    """

    def __init__(self, entries: Sequence[Accepted], today: datetime.date) -> None:
        self._entries = entries
        self._today = today
        self._seen: set[int] = set()
        self._used: set[int] = set()

    def see(self, measure: Measure) -> None:
        """Note that a record was judged, so that entries which match nothing can be told."""
        self._seen.update(number for number, _ in self._matching(measure))

    def decide(self, measure: Measure, failed: Collection[str]) -> tuple[bool, str]:
        """Decide about a record that fails.

        Args:
            measure: The record.
            failed: Names of what it fails by: metrics, or counts of ``decision.OF_CLASSES``.

        Returns:
            Whether the failure is accepted, and why or why not in words; ``""`` where no entry speaks of it.
        """
        refusals = []
        for number, entry in self._matching(measure):
            self._used.add(number)
            refusal = self._refusal(entry, measure, failed)
            if not refusal:
                return True, _described(entry)
            refusals.append(refusal)
        return False, "; ".join(refusals)

    def warnings(self) -> list[str]:
        """Return what became of entries that accepted nothing."""
        texts = []
        for number, entry in enumerate(self._entries):
            if number not in self._seen:
                texts.append(f"accepted {entry.match!r} matches no record")
            elif number not in self._used:
                texts.append(f"accepted {entry.match!r} is not needed any more: what it matches passes")
        return texts

    def _matching(self, measure: Measure) -> Iterator[tuple[int, Accepted]]:
        return ((number, entry) for number, entry in enumerate(self._entries) if matches(measure, entry.match, entry.phase))

    def _refusal(self, entry: Accepted, measure: Measure, failed: Collection[str]) -> str:
        """Return why an entry does not accept a failure, ``""`` where it does."""
        if entry.until and datetime.date.fromisoformat(entry.until) < self._today:
            return f"was accepted until {entry.until} only{_ticket(entry)}"
        limits = conditions(entry, entry.match)
        used = uses(measure, limits)
        exceeded = [use.condition.text for use in used if use.fails]
        if exceeded:
            return f"exceeds what was accepted{_ticket(entry)}: {', '.join(exceeded)}"
        unknown = [use.condition.text for use in used if use.is_open] + [limit.text for limit in lacking(measure, limits)]
        if unknown:
            return f"what was kept does not show that it keeps what was accepted{_ticket(entry)}: {', '.join(unknown)}"
        covered = {find_metric(limit.metric).family for limit in limits}
        beyond = sorted(metric for metric in failed if find_metric(metric).family not in covered) if limits else []
        return f"{', '.join(beyond)} was not accepted{_ticket(entry)}" if beyond else ""


def _described(entry: Accepted) -> str:
    until = f" until {entry.until}" if entry.until else ""
    return f"accepted{until}{_ticket(entry)}: {entry.because}" if entry.because else f"accepted{until}{_ticket(entry)}"


def _ticket(entry: Accepted) -> str:
    return f" ({entry.ticket})" if entry.ticket else ""

"""Known differences: counted and shown instead of failed, until their last day and within limits of their own."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence

from precflow.comparison.measure import Measure
from precflow.config.schema import Accepted
from precflow.judgement.limits import find_unavailable, list_conditions, measure_uses
from precflow.judgement.patterns import matches
from precflow.metrics import find_metric


class AcceptedDifferences:
    """The accepted entries of a recipe, and which of them matched or were needed.

    Args:
        entries: In order; the first that accepts a record is named.
        today: Decides whether an entry has expired; on its last day it still counts.
    """

    def __init__(self, entries: Sequence[Accepted], today: datetime.date) -> None:
        self._entries = entries
        self._today = today
        self._matched: set[int] = set()
        self._needed: set[int] = set()

    def note(self, measure: Measure) -> None:
        """Note that a record is judged, so that :meth:`warnings` can name entries that match nothing."""
        self._matched.update(number for number, _ in self._find_matching(measure))

    def decide(self, measure: Measure, failed: Collection[str]) -> tuple[bool, str]:
        """Decide whether the failure of a record is accepted.

        Args:
            measure: The record.
            failed: Names of what it fails by: metrics, or counts of ``decision.CLASS_FAILURES``.

        Returns:
            Whether it is accepted, and why or why not in words; ``""`` if no entry matches the record.
        """
        refusals = []
        for number, entry in self._find_matching(measure):
            self._needed.add(number)
            refusal = self._describe_refusal(entry, measure, failed)
            if not refusal:
                until = f" until {entry.until}" if entry.until else ""
                because = f": {entry.because}" if entry.because else ""
                return True, f"accepted{until}{_ticket(entry)}{because}"
            refusals.append(refusal)
        return False, "; ".join(refusals)

    def warnings(self) -> list[str]:
        """Name the entries that accepted nothing: past their last day, a misspelt pattern, or a difference that is gone."""
        texts = []
        for number, entry in enumerate(self._entries):
            if number in self._needed and self._is_expired(entry):
                texts.append(f"accepted {entry.match!r}{_ticket(entry)} was valid until {entry.until}: it fails again")
            elif number not in self._matched:
                texts.append(f"accepted {entry.match!r} matches no record")
            elif number not in self._needed:
                texts.append(f"accepted {entry.match!r} is not needed any more: what it matches passes")
        return texts

    def _find_matching(self, measure: Measure) -> Iterator[tuple[int, Accepted]]:
        return ((number, entry) for number, entry in enumerate(self._entries) if matches(measure, entry.match, entry.phase))

    def _is_expired(self, entry: Accepted) -> bool:
        return bool(entry.until) and datetime.date.fromisoformat(entry.until) < self._today

    def _describe_refusal(self, entry: Accepted, measure: Measure, failed: Collection[str]) -> str:
        """Say why an entry does not accept a failure, ``""`` if it does.

        An entry with limits accepts only the metrics that it limits; an entry without any accepts every failure.
        """
        if self._is_expired(entry):
            return f"was accepted until {entry.until} only{_ticket(entry)}"
        limits = list_conditions(entry, entry.match)
        uses = measure_uses(measure, limits)
        exceeded = [use.condition.text for use in uses if use.fails]
        if exceeded:
            return f"exceeds what was accepted{_ticket(entry)}: {', '.join(exceeded)}"
        unknown = [use.condition.text for use in uses if use.is_undecided]
        unknown += [limit.text for limit in find_unavailable(measure, limits)]
        if unknown:
            return f"what was kept does not show that it stays within what was accepted{_ticket(entry)}: {', '.join(unknown)}"
        # A limit on `allclose_share` also covers its forms by element type, such as `allclose_share_bfloat16`.
        covered = {find_metric(limit.metric).family for limit in limits}
        beyond = sorted(metric for metric in failed if find_metric(metric).family not in covered) if limits else []
        return f"{', '.join(beyond)} was not accepted{_ticket(entry)}" if beyond else ""


def _ticket(entry: Accepted) -> str:
    return f" ({entry.ticket})" if entry.ticket else ""

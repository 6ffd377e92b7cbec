"""What the ranks of a side report while they run, and what it says about the one that stopped them all."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

# What torchrun tells a rank. A side without a launcher must not take over what somebody has told precflow itself.
RANK_VARIABLES = frozenset(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"])
_MOST_NAMED = 4  # ranks that a sentence names

_Group = str  # the ranks of a group, such as ``0,1``


class Ranks:
    """The events of all ranks of one side.

    Attributes:
        errors: Rank -> why it has stopped, in the order of arrival.
        ended: Rank -> exit code that is not 0, or ``-signal``, in the order of arrival. Only of ranks that the agent started.
    """

    def __init__(self) -> None:
        self.errors: dict[int, Mapping[str, Any]] = {}
        self.ended: dict[int, int] = {}
        self._latest: dict[int, Mapping[str, str]] = {}  # the collective that a rank began last
        self._begun: dict[tuple[int, _Group], int] = {}  # the number of the last one that it began in a group

    def note(self, event: Mapping[str, Any]) -> None:
        """Note an event that names its rank."""
        rank = int(event["rank"])
        if event["event"] == "error":
            self.errors.setdefault(rank, event)
        elif event["event"] == "ended":
            self.ended.setdefault(rank, int(event["code"]))
        elif event["event"] == "collective":
            self._latest[rank] = event
            self._begun[rank, event["group"]] = int(event["number"])

    def find_culprit(self, *, timed_out: bool) -> int | None:
        """Return the rank that stopped the others, ``None`` if none is known.

        A rank that dies without a word makes the others fail in their next collective, so it comes before those that report an
        error. Otherwise it is the first that reported one, or after a timeout one that others wait for.
        """
        silent = [rank for rank in self.ended if rank not in self.errors]
        if silent or self.errors:
            return silent[0] if silent else next(iter(self.errors))
        return next(iter(self._find_late()), None) if timed_out else None

    def describe_failure(self, rank: int, ranks: int) -> tuple[str, str]:
        """Return why a rank failed and what the others waited for, and what to do next."""
        next_step = ""
        if rank in self.errors:
            told = self.errors[rank]
            why, next_step = f"rank {rank} of {ranks}: {told['message']}", str(told.get("next_step", ""))
        elif self.ended[rank] < 0:
            why = f"rank {rank} of {ranks} was killed by {signal.Signals(-self.ended[rank]).name}"
        else:
            why = f"rank {rank} of {ranks} ended with exit code {self.ended[rank]}"
        return why + self.describe_waiting(rank), next_step

    def describe_waiting(self, late: int | None) -> str:
        """Return what the other ranks waited for, as words that follow a sentence; ``""`` if no collective is known.

        Args:
            late: The rank that they waited for, if that is known.
        """
        waiting = {rank: event for rank, event in self._latest.items() if rank != late}
        if not waiting:
            return ""
        parts = []
        for rank, event in sorted(waiting.items())[:_MOST_NAMED]:
            missing = [other for other in self._find_late(event) if other != rank]
            reached = f", which rank {', '.join(map(str, missing))} has not reached" if missing else ""
            parts.append(f"rank {rank} was in {_describe(event)}{reached}")
        more = len(waiting) - _MOST_NAMED
        parts += [f"and so on for {more} more"] if more > 0 else []
        own = f"; the last that rank {late} began was {_describe(self._latest[late])}" if late in self._latest else ""
        return "; " + "; ".join(parts) + own

    def _find_late(self, event: Mapping[str, str] | None = None) -> list[int]:
        """Return the ranks that have begun fewer collectives of a group than others of it: of one event's group, or of any."""
        groups = {group for _, group in self._begun} if event is None else {event["group"]}
        late: list[int] = []
        for group in sorted(groups):
            members = [int(rank) for rank in group.replace(">", ",").split(",")]  # `0>1` are sends from 0 to 1
            begun = {rank: self._begun.get((rank, group), -1) for rank in members}
            late += [rank for rank in members if begun[rank] < max(begun.values())]
        return sorted(set(late))


def _describe(event: Mapping[str, str]) -> str:
    return f"{event['operator']} number {event['number']} of ranks {event['group']} ({event['place']})"

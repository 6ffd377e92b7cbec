"""Which steps of a long run are kept: the last ones, and for good those before a NaN or an Inf appeared."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Iterable, List, Mapping, Optional, Set, Tuple

import torch

from precflow.agent.contract import STATISTICS

Key = Tuple[int, int]  # step and rank

_NONFINITE = [STATISTICS.index(name) for name in ("nan", "positive_infinity", "negative_infinity")]
_Producer = Tuple[Any, ...]


class Ring:
    """The steps that are kept.

    When something is wrong, the steps that are there then are kept for good; those that follow go round again, so that a run
    full of NaN does not fill the disk.

    Args:
        keep_last: How many finished steps are kept.

    Attributes:
        dropped: Steps that are gone.
        held: Steps that are kept for good.
    """

    def __init__(self, keep_last: int) -> None:
        self.dropped: List[Key] = []
        self.held: Set[Key] = set()
        self._keep_last = keep_last
        self._going_round: Deque[Key] = deque()

    def hold(self, under_way: Optional[Key]) -> None:
        """Keep for good what is there, with the step that is under way: as many steps as are kept in any case."""
        there = [*self._going_round, *([under_way] if under_way else [])]
        self.held.update(there[-self._keep_last :])
        self._going_round = deque(key for key in self._going_round if key not in self.held)

    def resume(self, key: Key, *, held: bool) -> None:
        """Take over, in order, a finished step of a writer that was stopped; ``held`` if :meth:`hold` came during it."""
        if held:
            self.hold(key)
        else:
            self._going_round.append(key)

    def finished(self, key: Key) -> List[Key]:
        """Note that a step is finished, and return those that are to go."""
        if key not in self.held:
            self._going_round.append(key)
        gone = []
        while len(self._going_round) > self._keep_last:
            gone.append(self._going_round.popleft())
        self.dropped += gone
        return gone


class Alarm:
    """Finds calls that make a NaN or an Inf which did not go in, each of them once in a run.

    An Inf that an argument asks for (``masked_fill`` with ``-inf``) is no news.
    """

    def __init__(self) -> None:
        self._known: Set[_Producer] = set()
        self._contents: Set[str] = set()

    def content(self, key: str) -> None:
        """Note that a stored tensor holds a NaN or an Inf: in a dump that has no statistics."""
        self._contents.add(key)

    def rings(self, line: Mapping[str, Any]) -> bool:
        """Tell whether this call is the first of its kind that makes one."""
        made = any(self._nonfinite(one) for one in line["outputs"])
        if not made or any(self._nonfinite(one) for one in line["inputs"]):
            return False
        if any("inf" in str(value) for value in line.get("arguments", {}).values()):
            return False
        who = tuple(line.get(part) for part in ("level", "module", "call", "operator", "ordinal", "phase"))
        new = who not in self._known
        self._known.add(who)
        return new

    def _nonfinite(self, record: Mapping[str, Any]) -> bool:
        statistics = record.get("statistics") or ()
        counted = bool(statistics) and any(statistics[place] for place in _NONFINITE)
        return counted or record.get("content", "") in self._contents


def all_finite(host: torch.Tensor) -> bool:
    """Tell whether a CPU tensor holds neither NaN nor Inf."""
    if not (host.is_floating_point() or host.is_complex()):
        return True
    values = host.float() if host.element_size() == 1 else host  # float8 has no isfinite of its own
    return bool(torch.isfinite(values).all())


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers as a recipe writes steps.

    >>> numbers_text([3, 0, 1, 2, 7])
    '0-3,7'
    """
    runs: List[List[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join("%d" % first if first == last else "%d-%d" % (first, last) for first, last in runs)


def numbers_of(text: str) -> List[int]:
    """Return the numbers that :func:`numbers_text` wrote.

    >>> numbers_of("0-3,7"), numbers_of("")
    ([0, 1, 2, 3, 7], [])
    """
    runs = [part.partition("-") for part in text.split(",") if part]
    return [number for first, _, last in runs for number in range(int(first), int(last or first) + 1)]

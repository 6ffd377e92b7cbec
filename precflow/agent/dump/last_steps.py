"""Which steps of a long run are kept: the last ones, and permanently those around the first NaN or Inf."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Iterable, List, Mapping, Optional, Set, Tuple

import torch

from precflow.agent.contract import STATISTICS

StepKey = Tuple[int, int]  # step and rank

_NONFINITE = [STATISTICS.index(name) for name in ("nan", "positive_infinity", "negative_infinity")]
_Producer = Tuple[Any, ...]


class LastSteps:
    """Decides which steps are kept and which are dropped.

    When something goes wrong, the steps that are kept at that moment are held permanently. The steps after them are dropped
    again after a while, so that a run full of NaN does not fill the disk.

    Args:
        keep_last: How many finished steps are kept.

    Attributes:
        dropped: Steps that have been dropped.
        held: Steps that are kept permanently.
    """

    def __init__(self, keep_last: int) -> None:
        self.dropped: List[StepKey] = []
        self.held: Set[StepKey] = set()
        self._keep_last = keep_last
        self._droppable: Deque[StepKey] = deque()

    def hold(self, under_way: Optional[StepKey]) -> None:
        """Keep the last ``keep_last`` steps permanently, counting the step that is being written."""
        there = [*self._droppable, *([under_way] if under_way else [])]
        self.held.update(there[-self._keep_last :])
        self._droppable = deque(key for key in self._droppable if key not in self.held)

    def resume(self, key: StepKey, *, held: bool) -> None:
        """Adopt a finished step of an interrupted writer, in order; ``held`` if :meth:`hold` was called during that step."""
        if held:
            self.hold(key)
        else:
            self._droppable.append(key)

    def finish(self, key: StepKey) -> List[StepKey]:
        """Note that a step is finished, and return the steps to remove now."""
        if key not in self.held:
            self._droppable.append(key)
        gone = []
        while len(self._droppable) > self._keep_last:
            gone.append(self._droppable.popleft())
        self.dropped += gone
        return gone


class Alarm:
    """Finds calls that return a NaN or an Inf although their inputs have none; reports each such call once in a run.

    An Inf that an argument asks for (``masked_fill`` with ``-inf``) does not count.
    """

    def __init__(self) -> None:
        self._known: Set[_Producer] = set()
        self._contents: Set[str] = set()

    def note_content(self, key: str) -> None:
        """Note that the stored tensor with this content id holds a NaN or an Inf; used where records have no statistics."""
        self._contents.add(key)

    def rings(self, line: Mapping[str, Any]) -> bool:
        """Tell whether this call is the first of its kind that produces a NaN or an Inf."""
        if not any(self._is_nonfinite(output) for output in line["outputs"]):
            return False
        if any(self._is_nonfinite(argument) for argument in line["inputs"]):  # it only passes on what another call produced
            return False
        if any("inf" in str(value) for value in line.get("arguments", {}).values()):
            return False
        # Without the step: a call that returns NaN in every step rings only in the first.
        who = tuple(line.get(part) for part in ("level", "module", "call", "operator", "ordinal", "phase"))
        new = who not in self._known
        self._known.add(who)
        return new

    def _is_nonfinite(self, record: Mapping[str, Any]) -> bool:
        statistics = record.get("statistics") or ()
        counted = bool(statistics) and any(statistics[place] for place in _NONFINITE)
        return counted or record.get("content", "") in self._contents


def is_finite(host: torch.Tensor) -> bool:
    """Tell whether a CPU tensor holds neither NaN nor Inf."""
    if not (host.is_floating_point() or host.is_complex()):
        return True
    values = host.float() if host.element_size() == 1 else host  # float8 has no isfinite of its own
    return bool(torch.isfinite(values).all())


def format_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, the way a recipe writes steps.

    >>> format_numbers([3, 0, 1, 2, 7])
    '0-3,7'
    """
    runs: List[List[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join("%d" % first if first == last else "%d-%d" % (first, last) for first, last in runs)


def parse_numbers(text: str) -> List[int]:
    """Return the numbers that :func:`format_numbers` wrote.

    >>> parse_numbers("0-3,7"), parse_numbers("")
    ([0, 1, 2, 3, 7], [])
    """
    runs = [part.partition("-") for part in text.split(",") if part]
    return [number for first, _, last in runs for number in range(int(first), int(last or first) + 1)]

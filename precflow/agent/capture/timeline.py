"""The timeline of a step: in which module call a node of the autograd graph was made."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Dict, List, Optional

from precflow.agent.capture.autograd import OUTERMOST, next_sequence

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import Frame


class Timeline:
    """Sequence numbers grow with every node that a thread makes: those between two marks belong to one module call."""

    def __init__(self) -> None:
        self._starts: List[int] = []
        self._frames: List[Frame] = []
        self._lines: Dict[int, List[int]] = {}
        self._last = 0

    def forget(self) -> None:
        """Begin a new step."""
        self._starts.clear()
        self._frames.clear()
        self._lines.clear()
        self._last = next_sequence()

    def mark(self, frame: Frame) -> None:
        """Nodes made from now on belong to this call."""
        now = self._last = next_sequence()
        if self._starts and self._starts[-1] == now:
            self._frames[-1] = frame
        else:
            self._starts.append(now)
            self._frames.append(frame)

    def frame(self, sequence: int) -> Optional[Frame]:
        """Return the call that made a node, or ``None``: a leaf, or a node from before this step."""
        place = bisect_right(self._starts, sequence) - 1
        return self._frames[place] if place >= 0 and sequence < OUTERMOST else None

    def made(self) -> Optional[int]:
        """Return the node that the operator which runs now has made for itself, once; ``None`` where it made none."""
        now = next_sequence()
        if now == self._last:
            return None
        self._last = now
        return now - 1

    def tie(self, sequence: Optional[int], order: int) -> None:
        """Note the line of the forward operator that made a node."""
        if sequence is not None:
            self._lines.setdefault(sequence, []).append(order)

    def lines(self, sequence: int) -> List[int]:
        """Return the forward lines of a node."""
        return self._lines.get(sequence, [])

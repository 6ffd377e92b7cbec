"""Reruns: module calls that had no graph at first, and get one when backward computes them again.

A reentrant checkpoint runs its part of the model without gradients, and once more, with gradients, when backward comes to it.
The rerun is no record. Its gradients are, and belong to the call that is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence

from precflow.agent.capture import autograd
from precflow.agent.capture.call_stack import Frame
from precflow.agent.capture.module_gradients import Given

if TYPE_CHECKING:
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.timeline import Timeline


class Rerun(NamedTuple):
    """A module that runs again: its provisional frame, what it was given, and the rerun around it."""

    frame: Frame
    given: Given
    around: Optional[Frame]


class Reruns:
    """Ties reruns to the calls that they repeat.

    One node of a checkpoint reruns one part of the model, in the order in which it ran first; backward takes the parts from the
    last to the first. So the reruns of a module under one node stand for the last of its calls that are still waiting.

    Args:
        timeline: Where nodes are told apart by the call that made them.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: Dict[str, List[Frame]] = {}
        self._running: List[Rerun] = []
        self._part: Dict[str, List[Frame]] = {}
        self._node = -1

    def forget(self) -> None:
        """Begin a new step."""
        self._waiting.clear()
        self._running.clear()
        self._part.clear()

    def without_graph(self, frame: Frame) -> None:
        """Note a call that was made without gradients."""
        self._waiting.setdefault(frame.module, []).append(frame)

    def entered(self, module: str, class_name: str, tensors: Sequence[Placed]) -> None:
        """Note that a module runs again."""
        if not self._waiting.get(module):
            return
        if autograd.current_sequence() != self._node:
            self.resolve()
            self._node = autograd.current_sequence()
        frame = Frame(module, class_name, 0, in_scope=True, compiled=False)
        self._part.setdefault(module, []).append(frame)
        self._running.append(Rerun(frame, Given(tensors), self._running[-1].frame if self._running else None))
        self._timeline.mark(frame)

    def left(self, module: str) -> Optional[Rerun]:
        """Return the rerun of a module that is done."""
        while self._running:
            done = self._running.pop()
            if done.frame.module == module:
                if done.around is not None:
                    self._timeline.mark(done.around)
                return done
        return None

    def resolve(self) -> None:
        """Tell the reruns so far which calls they repeat: their part is complete, for gradients come."""
        for module, reruns in self._part.items():
            waiting = self._waiting[module]
            for rerun, first in zip(reruns, waiting[-len(reruns) :]):
                rerun.repeats(first)
            del waiting[-len(reruns) :]
        self._part.clear()
        self._node = -1

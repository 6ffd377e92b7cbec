"""The autograd graph as module calls build it: what the phase backward needs to know while the forward runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from precflow.agent.capture import autograd
from precflow.agent.capture.module_gradients import Backward, Given
from precflow.agent.capture.recomputation import Reruns
from precflow.agent.capture.timeline import Timeline

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import Frame, Frames
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.record_lines import Lines


class Graph:
    """Follows module calls, in forward and where backward computes them again.

    Args:
        lines: Where records go.
        guard: Held by whoever calls.
        frames: Tell what is kept of gradients.
        modules: Gradients at modules are records; if not, only the timeline is kept, for operators.

    Attributes:
        timeline: Which call made a node.
        reruns: Calls that are repeated in backward.
    """

    def __init__(self, lines: Lines, guard: Guard, frames: Frames, *, modules: bool) -> None:
        self.timeline = Timeline()
        self.reruns = Reruns(self.timeline)
        self._backward = Backward(lines, guard, frames, self.reruns.resolve)
        self._modules = modules

    def begin(self, outside: Frame) -> None:
        """Begin a step.

        Raises:
            WriteError: What is left of the step before cannot be written.
        """
        self.end()
        self.timeline.forget()
        self.timeline.mark(outside)

    def flush(self) -> None:
        """Write gradients that have waited for others; no backward pass runs.

        Raises:
            WriteError: A line cannot be written.
        """
        self._backward.flush()

    def end(self) -> None:
        """Take every hook off, and let the step go.

        Raises:
            WriteError: What is left cannot be written.
        """
        try:
            self._backward.flush()
        finally:
            self._backward.forget()
            self.reruns.forget()

    def entered(self, frame: Frame, tensors: Sequence[Placed]) -> None:
        """A module begins its forward."""
        if frame.in_scope and self._modules and self._backward.records(frame):
            frame.edges = Given(tensors)
        self.timeline.mark(frame)

    def left(self, frame: Frame, tensors: Sequence[Placed], around: Frame) -> None:
        """A module is done; ``tensors`` is what it returned, nothing where an exception left it."""
        if frame.edges is not None:
            self._backward.attach(frame, frame.edges, tensors)
        if frame.in_scope and not autograd.grad_enabled():
            self.reruns.without_graph(frame)
        self.timeline.mark(around)

    def entered_again(self, module: str, class_name: str, tensors: Sequence[Placed]) -> None:
        """A module begins to run again inside backward."""
        self.reruns.entered(module, class_name, tensors)

    def left_again(self, module: str, tensors: Sequence[Placed]) -> None:
        """A module is done with running again."""
        rerun = self.reruns.left(module)
        if rerun is not None and self._modules and self._backward.records(rerun.frame):
            self._backward.attach(rerun.frame, rerun.given, tensors)

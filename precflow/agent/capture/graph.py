"""The link between module calls and the autograd graph, for the phase ``backward``.

Autograd knows nodes, not modules. Three things connect the two:

- a :class:`Timeline` of each step tells which module call has made a node;
- :class:`Recomputations` tie calls that a checkpoint runs again in backward to the first ones;
- :class:`Graph` is told when modules are entered and left, and passes that on to both and to the hooks for gradients.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence

import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.autograd import LEAVES_ABOVE, InputEdges, next_sequence
from precflow.agent.capture.call_stack import ModuleCall
from precflow.agent.capture.module_gradients import ModuleGradients

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import CallStack
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import TensorWithPath
    from precflow.agent.capture.record_lines import Lines


class Graph:
    """Follows module calls, in forward and where backward computes them again.

    Args:
        lines: Where records go.
        guard: Held by the caller of every method.
        stack: Tells what is kept of gradients.
        modules: Gradients at modules are records. If not, only the timeline is kept, for aten operators.

    Attributes:
        timeline: Tells which call has made a node.
        recomputations: Calls that are repeated in backward.
    """

    def __init__(self, lines: Lines, guard: Guard, stack: CallStack, *, modules: bool) -> None:
        self.timeline = Timeline()
        self.recomputations = Recomputations(self.timeline)
        self._gradients = ModuleGradients(lines, guard, stack, self.recomputations.resolve)
        self._modules = modules

    def begin_step(self, outside: ModuleCall) -> None:
        """Begin a step.

        Raises:
            WriteError: What is left of the step before cannot be written.
        """
        self.end_step()
        self.timeline.clear()
        self.timeline.mark(outside)

    def flush(self) -> None:
        """Write gradients that have waited for others; no backward pass may be running.

        Raises:
            WriteError: A line cannot be written.
        """
        self._gradients.flush()

    def end_step(self) -> None:
        """Write what is left of the step, and take every hook off.

        Raises:
            WriteError: What is left cannot be written.
        """
        try:
            self._gradients.flush()
        finally:
            self._gradients.remove_hooks()
            self.recomputations.clear()

    def enter(self, module_call: ModuleCall, tensors: Sequence[TensorWithPath]) -> None:
        """Note that a module begins its forward."""
        if module_call.in_scope and self._modules and self._gradients.are_recorded(module_call):
            module_call.input_edges = InputEdges(tensors)
        self.timeline.mark(module_call)

    def leave(self, module_call: ModuleCall, tensors: Sequence[TensorWithPath], around: ModuleCall) -> None:
        """Note that a module has ended its forward.

        Args:
            module_call: The call.
            tensors: What it returned; empty if an exception ended it.
            around: The call that continues now: the module that called this one.
        """
        if module_call.input_edges is not None:
            self._gradients.watch(module_call, module_call.input_edges, tensors)
        if module_call.in_scope and not torch.is_grad_enabled():
            self.recomputations.note_without_graph(module_call)
        self.timeline.mark(around)

    def enter_again(self, module: str, class_name: str, tensors: Sequence[TensorWithPath]) -> None:
        """Note that a module begins to run again inside backward."""
        self.recomputations.enter(module, class_name, tensors)

    def leave_again(self, module: str, tensors: Sequence[TensorWithPath]) -> None:
        """Note that a module has finished running again inside backward."""
        done = self.recomputations.leave(module)
        if done is not None and self._modules and self._gradients.are_recorded(done.module_call):
            self._gradients.watch(done.module_call, done.inputs, tensors)


class Timeline:
    """Tells which module call has made a node of the autograd graph.

    Each node gets the next sequence number of its thread. Noting the number whenever the running module changes is enough to
    know where a node was made::

        next number   10       12        15       20
        running       outside  encoder   layer.0  encoder

    Node 13 was made by ``encoder``, node 17 by ``layer.0``.
    """

    def __init__(self) -> None:
        self._starts: List[int] = []
        self._calls: List[ModuleCall] = []
        self._forward_lines: Dict[int, List[int]] = {}
        self._last = 0

    def clear(self) -> None:
        """Begin a new step."""
        self._starts.clear()
        self._calls.clear()
        self._forward_lines.clear()
        self._last = next_sequence()

    def mark(self, module_call: ModuleCall) -> None:
        """Note that nodes made from now on belong to this call."""
        now = self._last = next_sequence()
        if self._starts and self._starts[-1] == now:  # the call before has made no node: its entry would never be found
            self._calls[-1] = module_call
        else:
            self._starts.append(now)
            self._calls.append(module_call)

    def find_call(self, sequence: int) -> Optional[ModuleCall]:
        """Return the call that made a node, ``None`` for a leaf and for a node from before this step."""
        place = bisect_right(self._starts, sequence) - 1
        return self._calls[place] if place >= 0 and sequence < LEAVES_ABOVE else None

    def take_new_node(self) -> Optional[int]:
        """Return the node that was made for the running operator, only once; ``None`` if it has none of its own."""
        now = next_sequence()
        if now == self._last:
            return None
        self._last = now
        return now - 1

    def note_forward_line(self, sequence: Optional[int], order: int) -> None:
        """Note the line of the forward operator for which a node was made."""
        if sequence is not None:
            self._forward_lines.setdefault(sequence, []).append(order)

    def forward_lines(self, sequence: int) -> List[int]:
        """Return the forward lines of a node."""
        return self._forward_lines.get(sequence, [])


class Recomputation(NamedTuple):
    """A module that runs again: its provisional call, its inputs in the graph, and the recomputed call around it."""

    module_call: ModuleCall
    inputs: InputEdges
    around: Optional[ModuleCall]


class Recomputations:
    """Finds for each module call that runs again in backward the first call that it repeats.

    A reentrant checkpoint runs its part of the model without gradients, and again with gradients when backward comes to it::

        forward    checkpoint(block, x)     block runs, no graph      -> these are the records
        backward   node of the checkpoint   block runs again, graph   -> no records, but its gradients are

    The gradients of the second run belong to the records of the first. One node of a checkpoint repeats one part of the model,
    in the order in which it ran first; backward takes the parts from the last to the first. So the calls of a module that one
    node repeats stand for the last of its first calls that still wait.

    Args:
        timeline: Where the repeated calls are marked too.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: Dict[str, List[ModuleCall]] = {}  # module -> calls without a graph that were not repeated yet
        self._running: List[Recomputation] = []
        self._part: Dict[str, List[ModuleCall]] = {}  # module -> calls repeated by the node that runs now
        self._node = -1

    def clear(self) -> None:
        """Begin a new step."""
        self._waiting.clear()
        self._running.clear()
        self._part.clear()

    def note_without_graph(self, module_call: ModuleCall) -> None:
        """Note a call that was made without gradients and may be repeated."""
        self._waiting.setdefault(module_call.module, []).append(module_call)

    def enter(self, module: str, class_name: str, tensors: Sequence[TensorWithPath]) -> None:
        """Note that a module begins to run again."""
        if not self._waiting.get(module):
            return
        if autograd.current_sequence() != self._node:  # another checkpoint's node runs: the part before is complete
            self.resolve()
            self._node = autograd.current_sequence()
        module_call = ModuleCall(module, class_name, 0, in_scope=True, compiled=False)
        self._part.setdefault(module, []).append(module_call)
        around = self._running[-1].module_call if self._running else None
        self._running.append(Recomputation(module_call, InputEdges(tensors), around))
        self._timeline.mark(module_call)

    def leave(self, module: str) -> Optional[Recomputation]:
        """Return the recomputation of a module that has ended, ``None`` if none is running."""
        while self._running:
            done = self._running.pop()
            if done.module_call.module == module:
                if done.around is not None:
                    self._timeline.mark(done.around)
                return done
        return None

    def resolve(self) -> None:
        """Give the repeated calls so far the identities of the first ones: gradients arrive, so their part is complete."""
        for module, repeated in self._part.items():
            # From the end: backward comes to the last checkpoint first, but runs the calls inside it in forward order.
            waiting = self._waiting[module]
            for module_call, first in zip(repeated, waiting[-len(repeated) :]):
                module_call.become(first)
            del waiting[-len(repeated) :]
        self._part.clear()
        self._node = -1

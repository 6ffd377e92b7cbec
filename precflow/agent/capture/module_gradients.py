"""Gradients at modules: what arrives at the outputs of a module call, and what leaves its inputs.

torch's own full backward hooks pass every tensor through a node of their own: what a module is given and returns becomes a
view that in-place operators are refused on, and is no longer the object that the user's code made. Hooks of tensors see the
gradient from all uses of an input, not what one module added to it. So nothing is put into the graph here. Nodes of a
module's outputs get a pre-hook in forward, which sees what arrives. Once that happens, the part of the graph that this call
made is walked to where it uses the inputs, and there post-hooks read what leaves. Neither returns anything: autograd goes on
with the tensors that it had.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.autograd import Edge, Gradients, Node
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import NONE

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import Frame, Frames
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.record_lines import Lines, Record
    from precflow.agent.selection import Choice


class Given:
    """What a module call was given, as far as gradients go.

    Args:
        tensors: Its tensor arguments, before its forward.

    Attributes:
        edges: Where the gradient of each input goes, by index; of one that is given twice, the first.
        targets: The same the other way round; ``edges`` keeps the nodes alive that it goes by.
        since: Sequence number of the first node that the call can make.
    """

    __slots__ = ("edges", "since", "targets")

    def __init__(self, tensors: Iterable[Placed]) -> None:
        self.edges: Dict[str, Edge] = {}
        self.targets: Dict[Tuple[int, int], str] = {}
        for index, tensor in tensors:
            edge = autograd.edge_of(tensor)
            if edge is not None and (id(edge.node), edge.output) not in self.targets:
                self.edges[index] = edge
                self.targets[(id(edge.node), edge.output)] = index
        self.since = autograd.next_sequence()


class _Call:
    """A module call with a graph, and the gradients of the backward pass that is under way in it.

    Attributes:
        frame: The call.
        given: Its inputs.
        order: Indices of its outputs.
        others: Nodes of its outputs by index, where it has several: which of them will a backward pass come to?
        task: Number of the pass.
        passes: How many passes came before: a graph that is kept can be run again.
        awaited: Indices of outputs whose gradient is still to come.
        to_come: Index of an input -> uses of it that are still to come.
        hooked: Nodes and places that are read in this pass.
        handles: What takes the hooks of this pass off.
    """

    def __init__(self, frame: Frame, given: Given, outputs: Dict[str, Edge]) -> None:
        self.frame = frame
        self.given = given
        self.order = list(outputs)
        self.others = outputs if len(outputs) > 1 else {}
        self.passes = -1
        self.handles: List[Any] = []
        self.begin(-1, ())

    def begin(self, task: int, awaited: Iterable[str]) -> None:
        """Begin a backward pass."""
        self.task = task
        self.passes += task >= 0
        self.awaited = set(awaited)
        self.to_come: Dict[str, int] = {}
        self.hooked: Set[Tuple[Node, int]] = set()
        self.arrived: Dict[str, Record] = {}
        self.left: Dict[str, Record] = {}
        self.sums: Dict[str, torch.Tensor] = {}
        self.own: Set[str] = set()  # indices whose sum is memory of ours

    def end(self) -> None:
        """Let the pass go."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.hooked.clear()
        self.sums.clear()

    def added(self, index: str, known: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of two gradients; the first is autograd's own, and is left as it is."""
        with torch.no_grad():
            if index in self.own and (known.shape, known.dtype) == (part.shape, part.dtype):
                return known.add_(part)
            self.own.add(index)
            return known + part

    @property
    def complete(self) -> bool:
        """No gradient is still to come."""
        return not self.awaited and not any(self.to_come.values())


class _Output(NamedTuple):
    """One output of a call. Its hook holds this: never its own node, which would keep the graph alive.

    Attributes:
        index: Where it is in what the call returned.
        number: Which output of its node.
        direct: Inputs that its own node uses.
        following: Nodes of the same call next to it.
    """

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    number: int
    direct: List[str]
    following: List[Node]


def _output(index: str, edge: Edge, given: Given, *, made: bool) -> _Output:
    """Return what is to be known of an output; nothing lies behind it where the call has not ``made`` its node."""
    direct = [use.index for use in autograd.uses_of(edge.node, given.targets)] if made else []
    return _Output(index, edge.output, direct, autograd.inside(edge.node, given.since, given.targets) if made else [])


class Backward:
    """Records the gradients of module calls.

    Args:
        lines: Where records go.
        guard: Held while anything is looked at.
        frames: Tell what is kept of gradients.
        resolve: Called before a gradient is looked at: which call a rerun repeats is known by then.
    """

    def __init__(self, lines: Lines, guard: Guard, frames: Frames, resolve: Callable[[], None]) -> None:
        self._lines = lines
        self._guard = guard
        self._frames = frames
        self._resolve = resolve
        self._open: Dict[_Call, None] = {}
        self._handles: List[Any] = []

    def records(self, frame: Frame) -> bool:
        """Tell whether gradients of a module call are records."""
        return self._choice(frame).detail != NONE

    def attach(self, frame: Frame, given: Given, tensors: Sequence[Placed]) -> bool:
        """Watch a module call that is done; return whether its outputs have a graph of its own."""
        found = ((index, autograd.edge_of(tensor)) for index, tensor in tensors)
        outputs: Dict[str, Edge] = {index: edge for index, edge in found if edge is not None}
        call = _Call(frame, given, outputs)
        starts = {edge.node: None for edge in outputs.values() if autograd.sequence_of(edge.node) >= given.since}
        for node in starts:
            for use in autograd.uses_of(node, given.targets):
                self._handles.append(node.register_hook(partial(self._left, call, use.index, use.place)))
        for index, edge in outputs.items():
            arrived = partial(self._arrived, call, _output(index, edge, given, made=edge.node in starts))
            self._handles.append(edge.node.register_prehook(arrived))
        return bool(outputs)

    def flush(self) -> None:
        """Write what no backward pass will complete any more: none is running.

        Raises:
            WriteError: A line cannot be written.
        """
        with self._guard:
            for call in list(self._open):
                self._emit(call)

    def forget(self) -> None:
        """Take every hook off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for call in self._open:
            call.end()
        self._open.clear()

    def _arrived(self, call: _Call, output: _Output, gradients: Gradients) -> None:
        """See what arrives at an output, before its node runs."""
        with self._guard:
            if self._lines.failed:
                return
            self._resolve()
            self._enter(call)
            call.awaited.discard(output.index)
            gradient = gradients[output.number]
            if gradient is not None:
                call.arrived[output.index] = self._read(call, output.index, gradient)
            self._expect(call, output)
            self._finish(call)

    def _enter(self, call: _Call) -> None:
        """Begin a pass of the call, where this is its first gradient."""
        task = autograd.running_task()
        if call in self._open and call.task != task:
            self._emit(call)
        if call not in self._open:
            call.begin(task, (index for index, edge in call.others.items() if autograd.will_run(edge.node)))
            self._open[call] = None

    def _expect(self, call: _Call, output: _Output) -> None:
        """Wait for the uses of inputs below an output; those of its own node are read already."""
        for index in output.direct:
            call.to_come[index] = call.to_come.get(index, 0) + 1
        for use in autograd.uses(output.following, call.given.since, call.given.targets):
            if (use.node, use.place) not in call.hooked and autograd.will_run(use.node):
                call.hooked.add((use.node, use.place))
                call.to_come[use.index] = call.to_come.get(use.index, 0) + 1
                call.handles.append(use.node.register_hook(partial(self._left, call, use.index, use.place)))

    def _left(self, call: _Call, index: str, place: int, leaving: Gradients, arriving: Gradients) -> None:
        """See what one use of an input adds to its gradient, after the node has run."""
        del arriving
        with self._guard:
            if call not in self._open:
                return
            part, known = leaving[place], call.sums.get(index)
            if part is not None:
                call.sums[index] = part if known is None else call.added(index, known, part)
            call.to_come[index] -= 1
            if not call.to_come[index]:
                self._describe(call, index)
            self._finish(call)

    def _describe(self, call: _Call, index: str) -> None:
        if index in call.sums:
            call.left[index] = self._read(call, index, call.sums[index])

    def _read(self, call: _Call, index: str, gradient: torch.Tensor) -> Record:
        return self._lines.describe([(index, gradient)], store=True, choice=self._choice(call.frame))[0]

    def _choice(self, frame: Frame) -> Choice:
        return self._frames.choice("module", frame.module, frame.class_name, "", "backward")

    def _finish(self, call: _Call) -> None:
        if call.complete:
            self._emit(call)

    def _emit(self, call: _Call) -> None:
        del self._open[call]
        for index in [index for index, count in call.to_come.items() if count]:
            self._describe(call, index)
        frame, mark = call.frame, "+%d" % call.passes if call.passes else ""
        inputs = [_marked(call.arrived[index], mark) for index in call.order if index in call.arrived]
        outputs = [_marked(call.left[index], mark) for index in call.given.edges if index in call.left]
        if inputs or outputs:
            forward = [] if frame.order is None else [frame.order]
            heading = Heading("module", frame, "", 0, frame.site, False, {}, "backward", forward)  # noqa: FBT003  a tuple's field
            order = self._lines.emit(heading, inputs, outputs)
            for index, tensor in call.sums.items():
                if self._lines.sources.find(tensor) is None:  # made by what is not recorded
                    self._lines.sources.produced(tensor, (order, index + mark), made=True)
        call.end()


def _marked(record: Record, mark: str) -> Record:
    record["index"] += mark
    return record

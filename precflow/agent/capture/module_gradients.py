"""Gradients at modules: those that arrive at the outputs of a module call, and those that leave through its inputs.

Three ways to see them were tried. torch's own full backward hooks pass every tensor through a node of their own: what a module
is given and returns becomes a view that in-place operators are refused on, and is no longer the object that the user's code
made. Hooks on tensors see the gradient from all uses of an input, not what one module added to it. So nothing is put into the
graph here; hooks are set on the nodes that are there already::

    y = block(x)        x ... (node of x) <- mul <- add <- (node of y)
                                             |                |
                              post-hook: what leaves for x    pre-hook: what arrives at y

1. In forward, the nodes of the outputs get a pre-hook, which sees what arrives in backward.
2. Once something arrives, the part of the graph that the call has made is walked down to the nodes that use the inputs. These
   get a post-hook, which reads what leaves. The uses of one input are added up.

No hook returns anything, so autograd goes on with the tensors that it had.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import NONE

if TYPE_CHECKING:
    from precflow.agent.capture.autograd import GradientEdge, Gradients, GraphNode, InputEdges
    from precflow.agent.capture.call_stack import CallStack, ModuleCall
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import TensorWithPath
    from precflow.agent.capture.record_lines import Lines, Record
    from precflow.agent.selection import Choice


class _CallGradients:
    """A module call with a graph, and the gradients of the backward pass that runs through it.

    Attributes:
        module_call: The call.
        inputs: Its inputs in the graph.
        output_order: Indices of its outputs, in order.
        alternatives: Nodes of its outputs by index if it has several: a backward pass may come to only some of them.
        task: Number of the backward pass.
        earlier_passes: Passes before this one: a graph that is kept can be run again.
        awaited: Indices of outputs whose gradient is still to come.
        uses_to_come: Index of an input -> uses of it whose gradient is still to come.
        hooked: Nodes and places that are read in this pass.
        arrived: Records of the outputs' gradients, by index.
        left: Records of the inputs' gradients, by index.
        sums: The inputs' gradients so far, by index.
        own: Indices whose sum is memory of ours.
        handles: Take the hooks of this pass off.
    """

    def __init__(self, module_call: ModuleCall, inputs: InputEdges, outputs: Dict[str, GradientEdge]) -> None:
        self.module_call = module_call
        self.inputs = inputs
        # A node holds its hooks, and they hold this object. If it held the node again, the graph would not be freed with the
        # output, so the nodes are kept only where several have to be told apart.
        self.output_order = list(outputs)
        self.alternatives = outputs if len(outputs) > 1 else {}
        self.earlier_passes = -1
        self.handles: List[Any] = []
        self.begin_pass(-1, ())

    def begin_pass(self, task: int, awaited: Iterable[str]) -> None:
        """Begin a backward pass."""
        self.task = task
        self.earlier_passes += task >= 0
        self.awaited = set(awaited)
        self.uses_to_come: Dict[str, int] = {}
        self.hooked: Set[Tuple[GraphNode, int]] = set()
        self.arrived: Dict[str, Record] = {}
        self.left: Dict[str, Record] = {}
        self.sums: Dict[str, torch.Tensor] = {}
        self.own: Set[str] = set()

    def end_pass(self) -> None:
        """Take the hooks of the pass off and free its gradients."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.hooked.clear()
        self.sums.clear()

    def add(self, index: str, known: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of two gradients of one input. The first is autograd's own tensor and must not be written to."""
        with torch.no_grad():
            if index in self.own and (known.shape, known.dtype) == (part.shape, part.dtype):
                return known.add_(part)
            self.own.add(index)
            return known + part

    @property
    def is_complete(self) -> bool:
        """No gradient is still to come."""
        return not self.awaited and not any(self.uses_to_come.values())


class _OutputHook(NamedTuple):
    """What the hook of an output needs. It must not hold the output's own node, which would keep the graph alive.

    Attributes:
        index: Path of the output in what the call returned.
        number: Number of the output at its node.
        direct_uses: Indices of inputs that its own node uses.
        next_nodes: Nodes of the same call right below it.
    """

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    number: int
    direct_uses: List[str]
    next_nodes: List[GraphNode]


class ModuleGradients:
    """Records the gradients of module calls.

    Args:
        lines: Where records go.
        guard: Held while capture reads tensors.
        stack: Tells what is kept of gradients.
        resolve: Called before a gradient is read: by then it is known which calls the recomputed ones repeat.
    """

    def __init__(self, lines: Lines, guard: Guard, stack: CallStack, resolve: Callable[[], None]) -> None:
        self._lines = lines
        self._guard = guard
        self._stack = stack
        self._resolve = resolve
        self._open: Dict[_CallGradients, None] = {}  # calls that a backward pass has reached and not completed, in order
        self._handles: List[Any] = []
        self._entered: Optional[ModuleCall] = None  # a gradient has arrived at its output last, and none has left since

    def are_recorded(self, module_call: ModuleCall) -> bool:
        """Tell whether the gradients of a module call are records."""
        return self._choose(module_call).detail != NONE

    def watch(self, module_call: ModuleCall, inputs: InputEdges, tensors: Sequence[TensorWithPath]) -> None:
        """Set hooks on the nodes of a module call whose forward is done.

        Args:
            module_call: The call.
            inputs: Its inputs in the graph.
            tensors: What it returned.
        """
        edges = ((index, autograd.edge_of(tensor)) for index, tensor in tensors)
        outputs: Dict[str, GradientEdge] = {index: edge for index, edge in edges if edge is not None}
        gradients = _CallGradients(module_call, inputs, outputs)
        # Nodes that the call has made itself; a module may also return one of its inputs, or a weight.
        starts = {edge.node: None for edge in outputs.values() if autograd.sequence_of(edge.node) >= inputs.since}
        for node in starts:
            for use in autograd.find_direct_uses(node, inputs):
                read = partial(self._on_input_gradient, gradients, use.index, use.place)
                self._handles.append(node.register_hook(read))
        for index, edge in outputs.items():
            hook = _OutputHook(index, edge.output, [], [])
            if edge.node in starts:
                direct_uses = [use.index for use in autograd.find_direct_uses(edge.node, inputs)]
                hook = _OutputHook(index, edge.output, direct_uses, autograd.find_next_nodes(edge.node, inputs))
            self._handles.append(edge.node.register_prehook(partial(self._on_output_gradient, gradients, hook)))

    def flush(self) -> None:
        """Write the calls that no backward pass will complete any more; none may be running.

        Raises:
            WriteError: A line cannot be written.
        """
        with self._guard:
            for gradients in list(self._open):
                self._emit(gradients)

    def remove_hooks(self) -> None:
        """Take every hook off and forget the calls."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for gradients in self._open:
            gradients.end_pass()
        self._open.clear()

    def _on_output_gradient(self, gradients: _CallGradients, hook: _OutputHook, arriving: Gradients) -> None:
        """Read what arrives at an output, before its node runs."""
        with self._guard:
            if self._lines.failed:
                return
            self._resolve()
            self._begin_pass(gradients)
            gradients.awaited.discard(hook.index)
            gradient = arriving[hook.number]
            self._note_running(gradients.module_call, [] if gradient is None else [(hook.index, gradient)])
            if gradient is not None:  # a node with several outputs runs even if the loss depends on only one of them
                gradients.arrived[hook.index] = self._read(gradients, hook.index, gradient)
            self._hook_uses(gradients, hook)
            if gradients.is_complete:
                self._emit(gradients)

    def _note_running(self, module_call: ModuleCall, arriving: List[TensorWithPath]) -> None:
        """Note that the backward of a module call begins, unless it begins with that of a module inside, which says more."""
        inside, self._entered = self._entered, module_call
        if inside is not None and (not module_call.module or inside.module.startswith(module_call.module + ".")):
            self._entered = inside
            return
        self._lines.note_running(module_call, site=module_call.site, phase="backward", tensors=arriving)

    def _begin_pass(self, gradients: _CallGradients) -> None:
        """Begin a pass of the call if this is its first gradient; emit what an earlier pass has left incomplete."""
        # A pass may end before the call is complete: by an exception, or on a torch that cannot tell which nodes will run.
        # It shows only when the next gradient arrives with another pass number.
        task = autograd.current_pass()
        if gradients in self._open and gradients.task != task:
            self._emit(gradients)
        if gradients not in self._open:
            alternatives = gradients.alternatives.items()
            gradients.begin_pass(task, (index for index, edge in alternatives if autograd.will_run(edge.node)))
            self._open[gradients] = None

    def _hook_uses(self, gradients: _CallGradients, hook: _OutputHook) -> None:
        """Set hooks on the uses of inputs below an output; those of its own node have theirs since the forward."""
        for index in hook.direct_uses:
            gradients.uses_to_come[index] = gradients.uses_to_come.get(index, 0) + 1
        for use in autograd.find_uses(hook.next_nodes, gradients.inputs):
            if (use.node, use.place) not in gradients.hooked and autograd.will_run(use.node):
                gradients.hooked.add((use.node, use.place))
                gradients.uses_to_come[use.index] = gradients.uses_to_come.get(use.index, 0) + 1
                read = partial(self._on_input_gradient, gradients, use.index, use.place)
                gradients.handles.append(use.node.register_hook(read))

    def _on_input_gradient(
        self, gradients: _CallGradients, index: str, place: int, leaving: Gradients, arriving: Gradients
    ) -> None:
        """Add what one use contributes to the gradient of an input, after its node has run."""
        del arriving
        with self._guard:
            if gradients not in self._open:
                return
            self._entered = None
            part, known = leaving[place], gradients.sums.get(index)
            if part is not None:
                gradients.sums[index] = part if known is None else gradients.add(index, known, part)
            gradients.uses_to_come[index] -= 1
            if not gradients.uses_to_come[index]:
                self._read_sum(gradients, index)
            if gradients.is_complete:
                self._emit(gradients)

    def _read_sum(self, gradients: _CallGradients, index: str) -> None:
        if index in gradients.sums:
            gradients.left[index] = self._read(gradients, index, gradients.sums[index])

    def _read(self, gradients: _CallGradients, index: str, gradient: torch.Tensor) -> Record:
        return self._lines.describe([(index, gradient)], store=True, choice=self._choose(gradients.module_call))[0]

    def _choose(self, module_call: ModuleCall) -> Choice:
        return self._stack.choose("module", module_call.module, module_call.class_name, "", "backward")

    def _emit(self, gradients: _CallGradients) -> None:
        """Write the line of a call's pass. Records of its second pass and later ones end in ``+1``, ``+2`` and so on."""
        del self._open[gradients]
        for index in [index for index, count in gradients.uses_to_come.items() if count]:
            self._read_sum(gradients, index)
        module_call = gradients.module_call
        suffix = "+%d" % gradients.earlier_passes if gradients.earlier_passes else ""
        inputs = [gradients.arrived[index] for index in gradients.output_order if index in gradients.arrived]
        outputs = [gradients.left[index] for index in gradients.inputs.edges if index in gradients.left]
        if inputs or outputs:
            for record in (*inputs, *outputs):
                record["index"] += suffix
            forward = [] if module_call.order is None else [module_call.order]
            heading = Heading("module", module_call, "", 0, module_call.site, False, {}, "backward", forward)  # noqa: FBT003  a tuple's field
            order = self._lines.emit(heading, inputs, outputs)
            for index, tensor in gradients.sums.items():
                if self._lines.sources.find(tensor) is None:  # no recorded operator has made it, so the module did
                    self._lines.sources.note_output(tensor, (order, index + suffix), wrote=True)
        gradients.end_pass()

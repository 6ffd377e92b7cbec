"""What torch tells about the autograd graph; torch's private names for it are used here and nowhere else.

``tests/agent/capture/test_autograd.py`` checks the behaviour of each of them on every torch that the agent runs on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import torch

if TYPE_CHECKING:
    from precflow.agent.capture.nesting import TensorWithPath

GraphNode = Any  # torch.autograd.graph.Node
Gradients = Tuple[Optional[torch.Tensor], ...]

LEAVES_ABOVE = 1 << 62  # sequence numbers above this belong to leaves, which no module call has made

# These are looked up and not imported: a torch that lacks one of them can still record every phase but backward.
_NO_PASS = -1
_core: Any = sys.modules["torch._C"]
_pass_number: Optional[Callable[[], int]] = getattr(_core, "_current_graph_task_id", None)
_running_node: Optional[Callable[[], GraphNode]] = getattr(_core, "_current_autograd_node", None)
_counter: Optional[Callable[[], int]] = getattr(getattr(_core, "_autograd", None), "_get_sequence_nr", None)
_will_run: Optional[Callable[[GraphNode], bool]] = getattr(_core, "_will_engine_execute_node", None)


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor goes: the node that made the tensor, and the number of the output there."""

    node: GraphNode
    output: int


class InputUse(NamedTuple):
    """One node by which the gradient of an input leaves a module call.

    Attributes:
        node: The node.
        place: Position of the gradient in the tuple that the node returns.
        index: Index of the input that it is the gradient of.
    """

    node: GraphNode
    place: int
    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls here


class InputEdges:
    """The inputs of one module call as places in the autograd graph.

    Args:
        tensors: Tensor arguments of the call, before its forward runs.

    Attributes:
        edges: Index of an input -> where its gradient goes. A tensor that is given twice counts once, by its first index.
        targets: ``(id of a node, output)`` -> index of the input. The ids stay valid because ``edges`` holds the nodes.
        since: Sequence number of the first node that the call can make.
    """

    __slots__ = ("edges", "since", "targets")

    def __init__(self, tensors: Iterable[TensorWithPath]) -> None:
        self.edges: Dict[str, GradientEdge] = {}
        self.targets: Dict[Tuple[int, int], str] = {}
        for index, tensor in tensors:
            edge = edge_of(tensor)
            # In attention(x, x, x) the three edges are one and the same: nothing tells which of them a gradient is for.
            if edge is not None and (id(edge.node), edge.output) not in self.targets:
                self.edges[index] = edge
                self.targets[(id(edge.node), edge.output)] = index
        # Last, because edge_of makes a node for each leaf: those are not of the call.
        self.since = next_sequence()


def shows_graph() -> bool:
    """Tell whether this torch has all the functions that recording the phase ``backward`` needs."""
    return None not in (_pass_number, _running_node, _counter)


def current_pass() -> int:
    """Return the number of the backward pass that runs in this thread, -1 if there is none."""
    return _NO_PASS if _pass_number is None else _pass_number()


def is_in_backward() -> bool:
    """Tell whether a backward pass runs in this thread."""
    return _pass_number is not None and _pass_number() != _NO_PASS


def is_recomputing() -> bool:
    """Tell whether a forward runs again inside backward, as checkpoints do: only then are gradients enabled there."""
    return torch.is_grad_enabled() and is_in_backward()


def next_sequence() -> int:
    """Return the sequence number of the next node that this thread will make; the numbers only ever grow."""
    return 0 if _counter is None else _counter()


def sequence_of(node: GraphNode) -> int:
    """Return the sequence number of a node; that of a leaf is above ``LEAVES_ABOVE``."""
    return int(node._sequence_nr())  # noqa: SLF001  it has no public name


def current_sequence() -> int:
    """Return the sequence number of the node that runs in this thread, -1 if there is none."""
    node = None if _running_node is None else _running_node()
    return -1 if node is None else sequence_of(node)


def will_run(node: GraphNode) -> bool:
    """Tell whether the running backward pass will reach a node; yes if this torch cannot tell."""
    return True if _will_run is None else _will_run(node)


def edge_of(tensor: torch.Tensor) -> Optional[GradientEdge]:
    """Return where the gradient of a tensor goes, ``None`` if it has none; no function mode may be active."""
    if not tensor.requires_grad or tensor.is_inference():
        return None
    if tensor.grad_fn is not None:
        return GradientEdge(tensor.grad_fn, tensor.output_nr)
    # A leaf has no grad_fn. Its node, AccumulateGrad, can only be reached from a tensor that is made of it:
    # weight <- view_as: the next function of view_as is AccumulateGrad of weight.
    with torch.enable_grad():
        return GradientEdge(*tensor.view_as(tensor).grad_fn.next_functions[0])  # type: ignore[union-attr]  # it requires a gradient


def find_uses(starts: Iterable[GraphNode], inputs: InputEdges) -> List[InputUse]:
    """Return every use of a call's inputs in its part of the graph, at or below the given nodes.

    Nodes older than the call belong to others and are not entered.
    """
    since, targets = inputs.since, inputs.targets
    waiting: List[GraphNode] = list(starts)
    visited: Set[GraphNode] = set(waiting)  # keeps the nodes alive: the id of a node is only valid while it lives
    uses: List[InputUse] = []
    while waiting:
        node = waiting.pop()
        for place, (to, output) in enumerate(node.next_functions):
            if to is None:
                continue
            index = targets.get((id(to), output))
            if index is not None:  # an input: what lies below belongs to whoever made it
                uses.append(InputUse(node, place, index))
            elif to not in visited and since <= to._sequence_nr() < LEAVES_ABOVE:  # noqa: SLF001  sequence_of, without the call
                visited.add(to)
                waiting.append(to)
    return uses


def find_direct_uses(node: GraphNode, inputs: InputEdges) -> List[InputUse]:
    """Return the uses of a call's inputs by one of its nodes alone."""
    indices = [(place, inputs.targets.get((id(to), output))) for place, (to, output) in enumerate(node.next_functions)]
    return [InputUse(node, place, index) for place, index in indices if index is not None]


def find_next_nodes(node: GraphNode, inputs: InputEdges) -> List[GraphNode]:
    """Return the nodes right below one that the same call made."""
    following = [to for to, output in node.next_functions if to is not None and (id(to), output) not in inputs.targets]
    return [to for to in following if inputs.since <= sequence_of(to) < LEAVES_ABOVE]

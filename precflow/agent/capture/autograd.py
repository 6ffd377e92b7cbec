"""What autograd tells about its graph; the part that has no public name is named here and nowhere else.

``tests/agent/capture/test_autograd.py`` pins the behaviour of each on every torch that the agent runs on.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import torch

Node = Any  # torch.autograd.graph.Node
Gradients = Tuple[Optional[torch.Tensor], ...]

OUTERMOST = 1 << 62  # leaves have a sequence number above this: they belong to no call

_NO_TASK = -1
_core: Any = sys.modules["torch._C"]
_task: Optional[Callable[[], int]] = getattr(_core, "_current_graph_task_id", None)
_current: Optional[Callable[[], Node]] = getattr(_core, "_current_autograd_node", None)
_counter: Optional[Callable[[], int]] = getattr(getattr(_core, "_autograd", None), "_get_sequence_nr", None)
_will_run: Optional[Callable[[Node], bool]] = getattr(_core, "_will_engine_execute_node", None)


class Edge(NamedTuple):
    """Where the gradient of a tensor goes: the node that made it, and the number of its output there."""

    node: Node
    output: int


class Use(NamedTuple):
    """One way by which a gradient leaves a part of the graph.

    Attributes:
        node: The node.
        place: Of the gradient in what the node returns.
        index: Of the input that it is the gradient of.
    """

    node: Node
    place: int
    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls here


def usable() -> bool:
    """Tell whether this torch shows what the phase backward needs."""
    return None not in (_task, _current, _counter)


def running_task() -> int:
    """Return the number of the backward pass that runs in this thread, -1 where none does."""
    return _NO_TASK if _task is None else _task()


def in_backward() -> bool:
    """Tell whether a backward pass runs in this thread."""
    return _task is not None and _task() != _NO_TASK


def recomputing() -> bool:
    """Tell whether a forward runs again inside backward, as checkpoints do: only then are gradients enabled there."""
    return grad_enabled() and in_backward()


def grad_enabled() -> bool:
    """Tell whether what runs now builds a graph."""
    return torch.is_grad_enabled()


def next_sequence() -> int:
    """Return the sequence number that the next node made in this thread will have; they only ever grow."""
    return 0 if _counter is None else _counter()


def sequence_of(node: Node) -> int:
    """Return the sequence number of a node; that of a leaf is above ``OUTERMOST``."""
    return int(node._sequence_nr())  # noqa: SLF001  it has no public name


def current_sequence() -> int:
    """Return the sequence number of the node that runs in this thread, -1 where none does."""
    node = None if _current is None else _current()
    return -1 if node is None else sequence_of(node)


def will_run(node: Node) -> bool:
    """Tell whether the backward pass that is running comes to a node; yes where torch does not tell."""
    return True if _will_run is None else _will_run(node)


def edge_of(tensor: torch.Tensor) -> Optional[Edge]:
    """Return where the tensor's gradient goes, or ``None`` where it has none; call it without torch functions listening."""
    if not tensor.requires_grad or tensor.is_inference():
        return None
    if tensor.grad_fn is not None:
        return Edge(tensor.grad_fn, tensor.output_nr)
    with torch.enable_grad():  # a leaf: only what is made from it knows its node
        return Edge(*tensor.view_as(tensor).grad_fn.next_functions[0])  # type: ignore[union-attr]  # it requires a gradient


def uses(starts: Iterable[Node], since: int, targets: Dict[Tuple[int, int], str]) -> List[Use]:
    """Return the uses of inputs in the part of a graph that one module call made, below some of its nodes.

    Args:
        starts: The nodes.
        since: First sequence number of the call: older nodes belong to others.
        targets: ``(id of a node that is kept alive, output)`` of every input -> its index.
    """
    waiting: List[Node] = list(starts)
    seen: Set[Node] = set(waiting)  # holds them: an id of a node is good only as long as somebody holds it
    found: List[Use] = []
    while waiting:
        node = waiting.pop()
        for place, (to, output) in enumerate(node.next_functions):
            if to is None:
                continue
            index = targets.get((id(to), output))
            if index is not None:
                found.append(Use(node, place, index))
            elif to not in seen and since <= to._sequence_nr() < OUTERMOST:  # noqa: SLF001  as in sequence_of, which costs a call each
                seen.add(to)
                waiting.append(to)
    return found


def uses_of(node: Node, targets: Dict[Tuple[int, int], str]) -> List[Use]:
    """Return the uses of inputs by one node; arguments as of :func:`uses`."""
    found = [(place, targets.get((id(to), output))) for place, (to, output) in enumerate(node.next_functions)]
    return [Use(node, place, index) for place, index in found if index is not None]


def inside(node: Node, since: int, targets: Dict[Tuple[int, int], str]) -> List[Node]:
    """Return the nodes next to one that the same call made; arguments as of :func:`uses`."""
    following = [to for to, output in node.next_functions if to is not None and (id(to), output) not in targets]
    return [to for to in following if since <= sequence_of(to) < OUTERMOST]

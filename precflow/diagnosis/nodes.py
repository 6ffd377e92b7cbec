"""Calls as nodes of the data-flow graph, and its edges: which output of which call went into a call."""

from __future__ import annotations

import msgspec

from precflow.dumps.records import Call, Record

CallKey = tuple[int, int, int]
"""Rank, step and order of a call. Keys sort in order of completion, so what made an input sorts before what uses it."""
OutputKey = tuple[CallKey, str]
"""A call and the index of one of its outputs."""


class Edge(msgspec.Struct, frozen=True, gc=False):
    """One input of a call, or something else that the call depends on (weights of an earlier step, what its forward kept).

    Attributes:
        record: The input, or what the call depends on.
        source: The output that it comes from; ``None`` for weights and for what comes from outside the recorded calls.
        guessed: The source was not recorded, and was taken from execution order.
    """

    record: Record
    source: OutputKey | None
    guessed: bool = False


class CallNode(msgspec.Struct, frozen=True, gc=False):
    """One call in the graph.

    Attributes:
        key: Rank, step, order.
        call: The call.
        edges: One for each input, in order, then what the call depends on besides.
        inside: Calls that a module made before it was done, in order; empty for operators.
    """

    key: CallKey
    call: Call
    edges: tuple[Edge, ...]
    inside: tuple[CallKey, ...]


_ADD_TO_A_PRODUCT = frozenset("addmm addmv addr addbmm baddbmm".split())


def list_read_inputs(call: Call) -> tuple[Record, ...]:
    """Return the inputs of a call whose values count.

    With ``beta=0``, ``baddbmm`` does not read its first input, which many attentions make with ``torch.empty``: whatever is in
    that memory differs between the sides and says nothing.
    """
    adds = call.operator.removeprefix("aten.").rstrip("_") in _ADD_TO_A_PRODUCT
    if not adds or not _is_zero(call.arguments.get("beta", "1")):
        return call.inputs
    return tuple(record for record in call.inputs if record.index not in {"0", "input", "self"})


def _is_zero(text: str) -> bool:
    """Tell whether an argument is the number 0.

    >>> _is_zero("0"), _is_zero("0.0"), _is_zero("beta")
    (True, True, False)
    """
    try:
        return float(text) == 0.0
    except ValueError:
        return False


def key_of(call: Call) -> CallKey:
    """Return rank, step and order."""
    return (call.rank, call.step, call.order)

"""Calls as nodes of the data-flow graph, and its edges: which output of which call went into a call."""

from __future__ import annotations

from dataclasses import dataclass

from precflow.dumps.records import Call, Record

CallKey = tuple[int, int, int]
"""Rank, step and order of a call. Keys sort in order of completion, so what made an input sorts before what uses it."""
OutputKey = tuple[CallKey, str]
"""A call and the index of one of its outputs."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One input of a call, or something else that the call depends on (weights of an earlier step, what its forward kept).

    Attributes:
        record: The input, or what the call depends on.
        source: The output that it comes from; ``None`` for weights and for what comes from outside the recorded calls.
        guessed: The source was not recorded, and was taken from execution order.
    """

    record: Record
    source: OutputKey | None
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class CallNode:
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


def key_of(call: Call) -> CallKey:
    """Return rank, step and order."""
    return (call.rank, call.step, call.order)

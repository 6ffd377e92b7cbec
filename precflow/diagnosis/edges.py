"""Edges of the data-flow graph: which output of which call went into a call."""

from __future__ import annotations

from dataclasses import dataclass

from precflow.dumps.records import Call, Record

Key = tuple[int, int, int]
"""Rank, step and order of a call: sorts in order of completion, so every source sorts before what uses it."""
Place = tuple[Key, str]
"""A call and the index of one of its outputs."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One input of a call, or something else that it depends on.

    Attributes:
        record: The input, or what it depends on.
        source: Call and output index that it comes from; ``None`` for weights and for what comes from outside.
        guessed: Taken from execution order, because the recorded edge is missing.
    """

    record: Record
    source: Place | None
    guessed: bool = False


def key_of(call: Call) -> Key:
    """Return rank, step and order."""
    return (call.rank, call.step, call.order)

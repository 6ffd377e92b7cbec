"""Collectives in the graph: which calls of which ranks are one collective, and what each of them is made of.

The ranks of a group run the same program, so that the calls of one collective have the same name, whichever rank made them. A
``recv`` belongs to the ``send`` of the other rank, the first to the first and so on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from precflow.diagnosis.nodes import CallKey, key_of
from precflow.dumps.records import Call

COLLECTIVES = frozenset(
    "all_reduce all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor broadcast reduce gather scatter "
    "all_to_all all_to_all_single send recv".split()
)
REDUCING = frozenset("all_reduce reduce reduce_scatter reduce_scatter_tensor".split())
_OF_ROOT = frozenset("broadcast scatter".split())  # all ranks get what the root gives


def is_collective(call: Call) -> bool:
    """Tell whether a call is a collective, as the agent records it: with the ranks that take part."""
    return call.operator.removeprefix("aten.") in COLLECTIVES and "group" in call.arguments


def read_group(call: Call) -> tuple[int, ...]:
    """Return the ranks that take part in a collective; empty if the agent could not tell."""
    try:
        group = json.loads(call.arguments.get("group", "[]"))
    except ValueError:
        return ()
    return tuple(group) if isinstance(group, list) and all(isinstance(rank, int) for rank in group) else ()


def find_givers(calls: Iterable[Call]) -> Mapping[CallKey, tuple[Call, ...]]:
    """Return for each collective the calls whose inputs its outputs are made of, in order of their ranks.

    A collective that lacks the call of a rank of its group, because that was not recorded, has those that there are.
    """
    collectives = [call for call in calls if is_collective(call)]
    by_name: dict[tuple[object, ...], dict[int, Call]] = defaultdict(dict)
    sent: dict[tuple[int, int, int], list[Call]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[Call]] = defaultdict(list)
    for call in collectives:
        by_name[_name(call)][call.rank] = call
        if call.operator.endswith("send"):
            sent[call.step, call.rank, _read_rank(call, "destination")].append(call)
        elif call.operator.endswith("recv"):
            received[call.step, _read_rank(call, "source"), call.rank].append(call)
    givers = {key_of(call): _choose_givers(call, by_name[_name(call)]) for call in collectives}
    for way, calls_there in received.items():
        for send, receive in zip(sent.get(way, ()), calls_there, strict=False):
            givers[key_of(receive)] = (send,)
    return givers


def _choose_givers(call: Call, of_ranks: Mapping[int, Call]) -> tuple[Call, ...]:
    if call.operator.endswith(("send", "recv")):
        return (call,)
    root = _read_rank(call, "root")
    ranks = (root,) if call.operator.removeprefix("aten.") in _OF_ROOT and root in of_ranks else read_group(call)
    return tuple(of_ranks[rank] for rank in ranks if rank in of_ranks) or (call,)


def order_across_ranks(
    calls: Sequence[tuple[CallKey, Call]], givers: Mapping[CallKey, Sequence[Call]]
) -> Iterator[tuple[CallKey, Call]]:
    """Yield calls so that a collective comes after everything that any rank's input of it is made of.

    Each rank goes on until its next call is a collective that another rank has not come to. Where ranks call collectives in
    different order, so that each waits for another, the lowest rank goes on.

    Args:
        calls: With their keys, sorted by them.
        givers: What :func:`find_givers` returned.
    """
    queues: dict[int, list[tuple[CallKey, Call]]] = defaultdict(list)
    for key, call in reversed(calls):
        queues[call.rank].append((key, call))
    while any(queues.values()):
        for rank in sorted(queues):
            while queues[rank] and queues[rank][-1][0] not in givers:
                yield queues[rank].pop()
        waiting = [rank for rank in sorted(queues) if queues[rank]]
        ready = [rank for rank in waiting if all(_has_come_to(queues, giver) for giver in givers[queues[rank][-1][0]])]
        for rank in ready or waiting[:1]:
            yield queues[rank].pop()


def _has_come_to(queues: Mapping[int, list[tuple[CallKey, Call]]], giver: Call) -> bool:
    """Tell whether a rank's next call is this one, or was."""
    queue = queues[giver.rank]
    return not queue or queue[-1][0] >= key_of(giver)


def _name(call: Call) -> tuple[object, ...]:
    return (call.step, call.level, call.module, call.call, call.operator, call.ordinal, call.phase)


def _read_rank(call: Call, argument: str) -> int:
    text = call.arguments.get(argument, "")
    return int(text) if text.isdigit() else -1

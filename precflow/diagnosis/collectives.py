"""Collectives in the graph: which calls of which ranks are one collective, what each of them is made of, and which are missing.

The ranks of a group run the same program, so that the calls of one collective have the same name, whichever rank made them. A
``recv`` belongs to the ``send`` of the other rank, the first to the first and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import OUTSIDE, ROOT_MODULE
from precflow.diagnosis.nodes import CallKey, key_of
from precflow.dumps.collectives import find_carried, is_collective, read_group, read_rank
from precflow.dumps.records import Call

_NAMED = 5  # parameters that a sentence names
_OF_ROOT = frozenset("broadcast scatter".split())  # all ranks get what the root gives


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
            sent[call.step, call.rank, read_rank(call, "destination")].append(call)
        elif call.operator.endswith("recv"):
            received[call.step, read_rank(call, "source"), call.rank].append(call)
    givers = {key_of(call): _choose_givers(call, by_name[_name(call)]) for call in collectives}
    for way, calls_there in received.items():
        for send, receive in zip(sent.get(way, ()), calls_there, strict=False):
            givers[key_of(receive)] = (send,)
    return givers


def _choose_givers(call: Call, of_ranks: Mapping[int, Call]) -> tuple[Call, ...]:
    if call.operator.endswith(("send", "recv")):
        return (call,)
    root = read_rank(call, "root")
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


# Collectives that only one side calls


@dataclass(frozen=True)
class LoneCollective:
    """A collective that only one side calls.

    Attributes:
        call: The call.
        parameters: Parameters whose gradients it carries, and no collective of the other side does in that step; empty for one
            that carries activations.
    """

    call: Call
    parameters: tuple[str, ...]


def find_lone(calls: Iterable[Call], others: Iterable[Call]) -> list[LoneCollective]:
    """Return the collectives of one side that the other does not call, in order of ranks, steps and completion.

    One whose parameters another collective of the other side carries in that step is only made in another way: a bucket of
    ``DistributedDataParallel`` in place of one call for each parameter.

    Args:
        calls: Calls of one side.
        others: Those of the other, numbered as their partners are.
    """
    own, other = list(calls), list(others)
    known = {(call.rank, *_name(call)) for call in other if is_collective(call)}
    alone = [call for call in own if is_collective(call) and (call.rank, *_name(call)) not in known]
    if not alone:
        return []
    carried, carried_there = find_carried(own), find_carried(other)
    elsewhere = {(rank, step, name) for (rank, step, _), names in carried_there.items() for name in names}
    lone = []
    for call in alone:
        names = carried.get(key_of(call), ())
        lost = tuple(name for name in names if (call.rank, call.step, name) not in elsewhere)
        if lost or not names:
            lone.append(LoneCollective(call, lost))
    return lone


def describe_lone(lone: Iterable[LoneCollective]) -> list[str]:
    """Return in words what some collectives are and carry, those that carry gradients in one text for each kind.

    The same is said once, whichever ranks and steps it is true of.
    """
    of_kind: dict[str, dict[str, None]] = defaultdict(dict)
    texts: dict[str, None] = {}
    for one in lone:
        kind = one.call.operator.removeprefix("aten.")
        if one.parameters:
            of_kind[kind].update(dict.fromkeys(one.parameters))
        else:
            inside = one.call.module not in {OUTSIDE, ROOT_MODULE}
            texts[f"{kind} in {one.call.module}" if inside else kind] = None
    return [*(f"{kind} of the gradients of {_list_some(list(names))}" for kind, names in of_kind.items()), *texts]


def _list_some(names: Sequence[str]) -> str:
    """Return names in a list, at most five of them.

    >>> _list_some(["a", "b"]), _list_some([str(number) for number in range(7)])
    ('a and b', '0, 1, 2, 3, 4 and 2 more')
    """
    if len(names) <= _NAMED:
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"

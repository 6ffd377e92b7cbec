"""Gradients that one side reduces more often in a step than the other, and come to the same.

A loop of two micro batches may reduce after each of them, or only after the last (``no_sync``)::

    reference   g0             g0 + g1             all_reduce: mean of g0 + g1
    target      g0 -> mean g0  mean of g0 + g1 *   all_reduce: mean of g0 + g1     * only the rank's own g1 is not reduced

What a backward leaves after the first reduction is then another number on the two sides, and right on both: the optimizer is
given what the last reduction returns. That has to agree: a small step of the weights shows nothing of a gradient. A bucket may
hold its parameters in another order then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from precflow.agent.contract import GRADIENT, OPTIMIZER
from precflow.dumps.collectives import REDUCING, find_carried, is_collective, name_parameter
from precflow.dumps.records import Call, Record

_Of = tuple[int, int, str]
"""Rank, step and parameter."""


def find_repeated(
    reference: Iterable[Call], target: Iterable[Call], agree: Callable[[Record, Record], bool]
) -> Mapping[str, tuple[str, ...]]:
    """Return the records of gradients that one side has reduced already, and of the reductions of these.

    Left out are parameters of which no step was recorded, or whose optimizers are given gradients that do not agree.

    Args:
        reference: Calls of the reference.
        target: Calls of the target, numbered as their partners are.
        agree: Tells whether a gradient that the optimizer is given agrees on both sides.

    Returns:
        Identity text of each record -> those of what the optimizer makes of these gradients.
    """
    sides = [list(reference), list(target)]
    reductions = [_list_reductions(side) for side in sides]
    repeated = {
        of: int(len(reductions[1][of]) > len(reductions[0][of]))  # the side that reduces more often
        for of in reductions[0].keys() & reductions[1].keys()
        if len(reductions[0][of]) != len(reductions[1][of])
    }
    if not repeated:
        return {}
    updates, updates_of_target = (_index_updates(side) for side in sides)
    steps = {
        of: tuple(record.text for record in call.outputs)
        for of, call in updates.items()
        if of in repeated and of in updates_of_target and _are_given_same(call, updates_of_target[of], agree)
    }
    found: dict[str, tuple[str, ...]] = {}
    for number, side in enumerate(sides):
        for call in side:
            for record in call.outputs if call.phase == GRADIENT else ():
                of = (call.rank, call.step, name_parameter(call, record))
                if repeated.get(of) == number and of in steps and call.order > reductions[number][of][0].order:
                    found[record.text] = steps[of]
        of_call: dict[int, list[_Of]] = defaultdict(list)
        for of, calls in reductions[number].items():
            for call in calls:
                of_call[id(call)].append(of)
        for call in side:
            names = of_call.get(id(call), [])
            if names and all(of in repeated and of in steps for of in names):
                made = tuple(text for of in names for text in steps[of])
                found |= {record.text: made for record in (*call.inputs, *call.outputs)}
    return found


def _index_updates(calls: Sequence[Call]) -> Mapping[_Of, Call]:
    """Return the step of the optimizer for each parameter; of several in a step the last."""
    return {
        (call.rank, call.step, name_parameter(call, call.outputs[0])): call
        for call in calls
        if call.phase == OPTIMIZER and call.outputs
    }


def _are_given_same(call: Call, other: Call, agree: Callable[[Record, Record], bool]) -> bool:
    """Tell whether the optimizer is given the same gradient on both sides; records of older agents do not have it."""
    name = call.outputs[0].index
    gradients = [next((record for record in each.inputs if record.index == name), None) for each in (call, other)]
    return gradients[0] is None or gradients[1] is None or agree(gradients[0], gradients[1])


def _list_reductions(calls: Sequence[Call]) -> Mapping[_Of, list[Call]]:
    """Return the collectives that reduce the gradient of each parameter, in order."""
    carried = find_carried(calls)
    reductions: dict[_Of, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.order):
        if is_collective(call) and call.operator.removeprefix("aten.") in REDUCING:
            for name in carried.get((call.rank, call.step, call.order), ()):
                reductions[call.rank, call.step, name].append(call)
    return reductions

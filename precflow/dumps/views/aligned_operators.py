"""Which operators of a module call are partners, where one side runs an operator once more than the other.

Records are paired by name, and calls of one operator in a module call differ in a number only. Behind an extra ``mul``, every
later one would be compared with another one, and be told to read another weight::

    reference   mul.0 (h, a)   mul.1 (h, b)                   mul.2 (h, c)
    target      mul.0 (h, a)   mul.1 (h, b)   mul.2 (h) 1.01  mul.3 (h, c)   ->  mul.0, mul.1, mul.3, mul.2

So such calls are paired, in their order, by what they read: weights, shapes, arguments, what made their inputs, and values.
Nothing is renumbered where both sides run an operator as often, or where a call of the side with fewer finds no partner: then
this is another implementation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import FORWARD
from precflow.dumps.collectives import is_collective
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call
from precflow.dumps.views.aligned_collectives import (
    Name,
    Numbers,
    RenumberedCalls,
    compare_norms,
    find_numbers,
    name_without_number,
    pair_in_order,
)

_SAME, _ARGUMENTS, _MAKERS, _BITS, _LINE = 2.0, 2.0, 1.0, 2.0, 1.0  # how well two calls fit; norms add up to 2
_CLEARLY = 0.75  # by how much other partners fit better than those of the same number
_MOST = 64  # calls of one operator in a module call


def align_calls(reference: Dump, target: Dump) -> Dump:
    """Return the target with the reference's numbers of collectives and operators; the same object if no number changes."""
    numbers = find_all_numbers(reference.calls(), target.calls())
    return RenumberedCalls(target, numbers) if numbers else target


def find_all_numbers(reference: Sequence[Call], target: Sequence[Call]) -> Numbers:
    """Return the target's collectives and operators that get another number."""
    return {**find_numbers(reference, target), **find_operator_numbers(reference, target)}


def find_operator_numbers(reference: Sequence[Call], target: Sequence[Call]) -> Numbers:
    """Return the target's operators that get another number; one without a partner gets a number that the other side lacks."""
    if _count(reference) == _count(target):  # in one pass, as nearly all pairs do
        return {}
    here, there = (_group(calls) for calls in (reference, target))
    others = {name for name in here.keys() & there.keys() if len(here[name]) != len(there[name])}
    if not others:
        return {}
    makers = [_find_makers(calls, others) for calls in (reference, target)]
    numbers: dict[tuple[Name, int], int] = {}
    for name in others:
        if max(len(here[name]), len(there[name])) > _MOST:
            continue
        ones, twos = ([_Operator(call, made) for call in side[name]] for side, made in zip((here, there), makers, strict=True))
        numbers |= {(name, own): number for own, number in _renumber(ones, twos).items()}
    return numbers


def _renumber(here: Sequence[_Operator], there: Sequence[_Operator]) -> dict[int, int]:
    """Return number of a call of the target -> its new number, for calls of one operator in one module call."""
    pairs = pair_in_order(here, there)
    same = [(place, place) for place in range(min(len(here), len(there)))]
    gain = sum(here[a].fit(there[b]) for a, b in pairs) - sum(here[a].fit(there[b]) for a, b in same)
    if len(pairs) < len(same) or gain < _CLEARLY:
        return {}
    partners = {b: here[a].call.ordinal for a, b in pairs}
    free = 1 + max(one.call.ordinal for one in (*here, *there))
    wanted = {two.call.ordinal: partners.get(place, free + place) for place, two in enumerate(there)}
    return {own: number for own, number in wanted.items() if own != number}


@dataclass(frozen=True)
class _Operator:
    """A call of an operator by what it reads.

    Attributes:
        call: The call.
        makers: Step, rank and order of a call -> its operator or module.
    """

    call: Call
    makers: Mapping[tuple[int, int, int], str]

    def fit(self, other: _Operator) -> float:
        """Return how well a call of the other side fits; 0 if it reads other weights or other shapes."""
        here, there = self.call, other.call
        if self._shapes() != other._shapes() or [one.weight for one in here.inputs] != [one.weight for one in there.inputs]:
            return 0.0
        same = bool(here.inputs) and all(
            one.known and one.known == two.known for one, two in zip(here.inputs, there.inputs, strict=True)
        )
        return (
            _SAME
            + _ARGUMENTS * (here.arguments == there.arguments)
            + _MAKERS * (self._name_makers() == other._name_makers())
            + _BITS * same
            + _LINE * bool(here.site and here.site == there.site)
            + compare_norms(here.inputs, there.inputs)
            + compare_norms(here.outputs, there.outputs)
        )

    def _shapes(self) -> list[tuple[int, ...]]:
        return [record.shape for record in (*self.call.inputs, *self.call.outputs)]

    def _name_makers(self) -> list[str]:
        call = self.call
        return [
            self.makers.get((call.step, call.rank, record.source[0]), "") if record.source is not None else ""
            for record in call.inputs
        ]


def _count(calls: Iterable[Call]) -> Counter[tuple[str, str]]:
    """Return how often each operator ran in each module."""
    return Counter((call.module, call.operator) for call in calls if call.operator and call.phase == FORWARD)


def _group(calls: Iterable[Call]) -> dict[Name, list[Call]]:
    """Return the operators of the forward of each name, in order of their numbers."""
    found = defaultdict[Name, list[Call]](list)
    for call in calls:
        if call.operator and call.phase == FORWARD and not is_collective(call):
            found[name_without_number(call)].append(call)
    for together in found.values():
        together.sort(key=lambda call: call.ordinal)
    return found


def _find_makers(calls: Iterable[Call], names: Iterable[Name]) -> dict[tuple[int, int, int], str]:
    """Return what calls are made by, in the steps and ranks of some names."""
    places = {(name[1], name[0]) for name in names}
    return {
        (call.step, call.rank, call.order): call.operator or call.class_name
        for call in calls
        if (call.step, call.rank) in places
    }

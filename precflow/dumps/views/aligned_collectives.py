"""A dump whose collectives have the numbers of their partners on the other side, although a side has one more or one less.

Records are paired by name, and collectives that run one after the other differ in a number only. Without the one for
``norm.weight``, every later one would be compared with that of another parameter::

    reference   all_reduce.0 head.weight   all_reduce.1 norm.weight   all_reduce.2 embed.weight
    target      all_reduce.0 head.weight                              all_reduce.1 embed.weight  ->  all_reduce.2

So collectives of one kind and place are paired by what they carry: the same parameters first, then in their order by sizes,
types and groups. Nothing is renumbered where the sides call the same ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from precflow.dumps.collectives import REDUCING, find_carried, is_collective
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.alignment import align
from precflow.dumps.views.derived import DerivedDump

Name = tuple[object, ...]
"""What the name of a call has besides its number."""
Numbers = Mapping[tuple[Name, int], int]
"""Name of a call of the target, and its number there -> the number of its partner."""
_SAME, _OTHER_GROUP, _OTHER_SHAPE = 6.0, 4.0, 1.0  # how well two collectives fit; equal bits and equal norms add up to 2
_LARGEST = 1 << 21  # pairs of collectives of one place that are tried


class RenumberedCalls(DerivedDump):
    """A dump in which some calls have other numbers; everything else is as it was recorded.

    Args:
        whole: The dump.
        numbers: Of the calls that get another one.
    """

    def __init__(self, whole: Dump, numbers: Numbers) -> None:
        super().__init__(whole)
        self._numbers = numbers

    def _derive_calls(self) -> list[Call]:
        """Return the calls by their new numbers."""
        return [_renumber(call, self._numbers) for call in self.whole.calls()]


def find_numbers(reference: Iterable[Call], target: Iterable[Call]) -> Numbers:
    """Return the target's collectives that get another number. One without a partner gets a number that the other has not."""
    here, there = (_describe(list(calls)) for calls in (reference, target))
    if not here or not there or _are_alike(here, there):
        return {}
    numbers: dict[tuple[Name, int], int] = {}
    for group, calls in there.items():
        others = here.get(group, [])
        pairs = _pair(others, calls)
        free = 1 + max((one.call.ordinal for one in (*others, *calls)), default=0)
        for place, one in enumerate(calls):
            partner = pairs.get(place)
            own = one.call.ordinal
            number = own if not others else free + place if partner is None else others[partner].call.ordinal
            if number != own:
                numbers[group, own] = number
    return numbers


class _Fitting(Protocol):
    """A call that tells how well another one fits."""

    @property
    def call(self) -> Call:
        """The call."""

    def fit(self, other: Any, /) -> float:
        """Return how well another one fits; 0 if it is another call."""


@dataclass(frozen=True)
class _Described:
    """A collective by what it carries."""

    call: Call
    carried: tuple[str, ...]

    def fit(self, other: _Described) -> float:
        """Return how well another one fits; 0 for one of other parameters."""
        if self.is_of_others(other):
            return 0.0
        here, there = self.call, other.call
        if not _have_same_shapes(self, other):
            return _OTHER_SHAPE if len(here.inputs) == len(there.inputs) else 0.0
        fit = _SAME if here.arguments == there.arguments else _OTHER_GROUP
        same = [bool(one.known) and one.known == two.known for one, two in zip(here.inputs, there.inputs, strict=True)]
        return fit + (bool(same) and all(same)) + compare_norms(here.inputs, there.inputs)

    def is_of_others(self, other: _Described) -> bool:
        """Tell whether both are known to carry something, and not the same."""
        return bool(self.carried and other.carried) and self.carried != other.carried


def _describe(calls: Sequence[Call]) -> dict[Name, list[_Described]]:
    """Return the collectives of each name, in order of their numbers."""
    described: dict[Name, list[_Described]] = defaultdict(list)
    carried = find_carried(calls)
    for call in sorted(filter(is_collective, calls), key=lambda call: call.ordinal):
        described[name_without_number(call)].append(_Described(call, carried.get((call.rank, call.step, call.order), ())))
    return described


def name_without_number(call: Call) -> Name:
    """Return what all calls have in common that differ in their number alone."""
    return (call.rank, call.step, call.module, call.call, call.operator, call.phase)


def _are_alike(here: Mapping[Name, Sequence[_Described]], there: Mapping[Name, Sequence[_Described]]) -> bool:
    """Tell whether the sides call collectives of the same sizes and parameters, one after the other."""
    if {group: len(calls) for group, calls in here.items()} != {group: len(calls) for group, calls in there.items()}:
        return False
    pairs = [pair for group, calls in here.items() for pair in zip(calls, there[group], strict=True)]
    return not any(one.is_of_others(two) or not _have_same_shapes(one, two) for one, two in pairs)


def _have_same_shapes(one: _Fitting, other: _Fitting) -> bool:
    here, there = (
        [(record.dtype, record.shape) for record in (*each.call.inputs, *each.call.outputs)] for each in (one, other)
    )
    return here == there


def compare_norms(here: Sequence[Record], there: Sequence[Record]) -> float:
    """Return how near the norms of two lists of tensors are, 0 to 1; 0 if they are not known."""
    squares = []
    for records in (here, there):
        known = [record.statistics.square for record in records if record.statistics is not None]
        if len(known) < len(records) or not known or any(square is None for square in known):
            return 0.0
        squares.append(math.sqrt(math.fsum(float(square or 0) for square in known)))
    largest = max(squares)
    return 1.0 - abs(squares[0] - squares[1]) / largest if 0.0 < largest < math.inf else 0.0


def _pair(here: Sequence[_Described], there: Sequence[_Described]) -> dict[int, int]:
    """Return position in ``there`` -> position in ``here``: the same parameters in whatever order, all others in theirs."""
    waiting: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, one in enumerate(here):
        if one.carried:
            waiting[one.carried].append(place)
    pairs: dict[int, int] = {}
    for names, others in waiting.items():
        own = [place for place, one in enumerate(there) if one.carried == names]
        # The optimizer is given what the last one returns: a loop may reduce at every micro batch.
        last = min(len(own), len(others)) if here[others[0]].call.operator.removeprefix("aten.") in REDUCING else 0
        pairs |= dict(zip(own[-last:], others[-last:], strict=False) if last else zip(own, others, strict=False))
    taken = set(pairs.values())
    left = [place for place in range(len(here)) if place not in taken]
    right = [place for place in range(len(there)) if place not in pairs]
    return pairs | {right[b]: left[a] for a, b in pair_in_order([here[a] for a in left], [there[b] for b in right])}


def pair_in_order(here: Sequence[_Fitting], there: Sequence[_Fitting]) -> list[tuple[int, int]]:
    """Return pairs of positions, both in order, that fit best together (an alignment of two sequences)."""
    rows, columns = len(here), len(there)
    # As many, each of another size: the sides have batches of other sizes.
    is_rescaled = rows == columns and not any(map(_have_same_shapes, here, there))
    if is_rescaled or rows * columns > _LARGEST:
        return [(place, place) for place in range(min(rows, columns)) if here[place].fit(there[place])]
    return align([[one.fit(two) for two in there] for one in here])


def _renumber(call: Call, numbers: Numbers) -> Call:
    """Return a call, with its records, by its new number."""
    number = numbers.get((name_without_number(call), call.ordinal))
    if number is None:
        return call
    inputs, outputs = (
        tuple(msgspec.structs.replace(record, whose=record.whose._replace(ordinal=number)) for record in records)
        for records in (call.inputs, call.outputs)
    )
    return msgspec.structs.replace(call, ordinal=number, inputs=inputs, outputs=outputs)

"""Calls of a model on parts of a batch seen as one call on the whole batch, as the other side makes it.

A sampler may compute both halves of its guidance in one call, or in two because memory is short; an evaluation may cut its
batch into smaller ones::

    reference    unet([empty, prompt])                   call 0, batch 2
    target       unet([empty])    unet([prompt])         calls 0 and 1, batch 1      ->    call 0, batch 2

Ranks of a data-parallel run compute parts of a batch too, so each part is seen as a rank, and
:mod:`precflow.dumps.views.joined_ranks` joins them. Forwards alone are joined: each backward on a part adds to the gradients of
the weights, and a backward on the whole batch makes them at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from precflow.agent.contract import FORWARD, OUTSIDE
from precflow.dumps.digest import content_id
from precflow.dumps.header import ContentEntries, ContentEntry, RanInAll
from precflow.dumps.origins import InputName
from precflow.dumps.protocol import Array, Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.aligned_model_calls import find_entered, group_by_call, write_name
from precflow.dumps.views.derived import DerivedDump, find_tensors
from precflow.dumps.views.joined_ranks import JoinedRanks, count_ranks
from precflow.errors import DumpError

_Given = Mapping[str, ContentEntry]
_Place = tuple[int, int]  # rank and step
_Units = Sequence[Sequence[int]]  # calls of a model that stand for one call of the other side, in the order of its batch


@dataclass(frozen=True)
class _Whole:
    """What the whole call of the other side is given: of each input its entry, and its tensor where it was kept."""

    given: _Given
    tensors: Mapping[str, Record]
    dump: Dump


def join_calls(reference: Dump, target: Dump) -> tuple[Dump, Dump]:
    """Return both dumps, that of a side which calls its model on parts with joined calls; otherwise both as they are."""
    if max(count_ranks(reference), count_ranks(target)) > 1 or not reference.header.inputs.digest:
        return reference, target
    here, there = (group_by_call(dump.header.inputs.entries) for dump in (reference, target))
    if not any(len(here[place]) != len(there[place]) for place in here.keys() & there.keys()):
        return reference, target
    for dump, calls, single, whole in ((target, there, reference, here), (reference, here, target, there)):
        units = _find_units(dump, calls, single, whole)
        if units:
            joined = JoinedRanks(_PartsAsRanks(dump, units), single)
            return (single, joined) if dump is target else (joined, single)
    return reference, target


def _find_units(
    dump: Dump, calls: Mapping[_Place, list[_Given]], single: Dump, whole: Mapping[_Place, list[_Given]]
) -> dict[_Place, _Units]:
    """Return, step by step, which calls of a dump are parts of one call of the other side; nothing if not all steps fit.

    All wholes are cut into the same number of parts, as ranks are.
    """
    tensors = find_tensors(single)
    units: dict[_Place, _Units] = {}
    for place in calls.keys() & whole.keys():
        found = _cut(calls[place], [_Whole(given, tensors, single) for given in whole[place]])
        phases = {call.phase for side in (dump, single) for call in side.calls(rank=place[0], step=place[1])}
        if found is None or phases != {FORWARD} or find_entered(dump.calls(rank=place[0], step=place[1]), calls[place]) is None:
            return {}
        units[place] = found
    parts = {len(unit) for found in units.values() for unit in found} - {1}
    return units if len(parts) == 1 else {}


def _cut(calls: Sequence[_Given], wholes: Sequence[_Whole]) -> list[list[int]] | None:
    """Return which calls make up each call of the other side, in order; ``None`` if they do not fit."""
    units: list[list[int]] = []
    at = 0
    for whole in wholes:
        count = _count_parts(calls[at:], whole.given)
        if not count:
            return None
        units.append(_order(list(range(at, at + count)), calls, whole))
        at += count
    return units if at == len(calls) else None


def _count_parts(calls: Sequence[_Given], whole: _Given) -> int:
    """Return how many of the next calls make up a whole one: their batches add up to its batch; 0 if they do not.

    An input without a batch, such as a timestep, is the same in all of them.
    """
    batches = {path: entry.shape[0] for path, entry in whole.items() if entry.shape}
    left = dict(batches)
    for count, given in enumerate(calls, 1):
        if given.keys() != whole.keys() or any(
            len(entry.shape) != len(whole[path].shape) or entry.shape[1:] != whole[path].shape[1:]
            for path, entry in given.items()
        ):
            return 0
        if count == 1 and all(entry.shape == whole[path].shape for path, entry in given.items()):
            return 1
        left = {path: size - given[path].shape[0] for path, size in left.items() if given[path].shape != whole[path].shape}
        if left and not any(left.values()):
            return count
        if not left or min(left.values()) <= 0:
            return 0
    return 0


def _order(members: list[int], calls: Sequence[_Given], whole: _Whole) -> list[int]:
    """Return parts in the order in which they lie in the batch, by the bits of an input; as they were called, if none tells."""
    for path, entry in whole.given.items():
        record = whole.tensors.get(entry.content)
        sizes = [calls[member][path].shape[:1] for member in members]
        if record is None or len(members) == 1 or len({*sizes}) > 1 or sizes[0] == entry.shape[:1]:
            continue
        try:
            tensor = whole.dump.tensor(record)
        except DumpError:
            continue
        rows = [content_id(part) for part in _split(tensor, len(members))]
        places = {content: place for place, content in enumerate(rows)}
        if len(places) == len(members) and all(calls[member][path].content in places for member in members):
            return sorted(members, key=lambda member: places[calls[member][path].content])
    return members


def _split(tensor: Array, count: int) -> list[Array]:
    return [np.ascontiguousarray(part) for part in np.split(tensor, count)]


class _PartsAsRanks(DerivedDump):
    """A dump in which the calls on parts of a batch are the same call on several ranks.

    Args:
        whole: The dump.
        units: Step -> calls of its models that are parts of one.
    """

    def __init__(self, whole: Dump, units: Mapping[_Place, _Units]) -> None:
        own = whole.header.inputs.entries
        given = {place: group_by_call(own)[place] for place in units}
        entries = dict(own)
        for place, found in units.items():
            for number, given_to in enumerate(given[place]):
                for path in given_to:
                    entries.pop(write_name(InputName(*place, number, path)), None)
            for call, members in enumerate(found):
                for rank, member in enumerate(members):
                    for path, entry in given[place][member].items():
                        entries[write_name(InputName(rank, place[1], call, path))] = entry
        ranks = max(len(members) for found in units.values() for members in found)
        sites = dict.fromkeys(range(1, ranks), whole.header.sites)
        inputs = ContentEntries(whole.header.inputs.digest, entries)
        ran = _count_wholes(whole.header.ran, given, units)
        super().__init__(whole, replace(whole.header, inputs=inputs, sites_of_ranks=sites, ran=ran))
        self.parts = ranks
        self._places = {
            place: _place_modules(find_entered(whole.calls(rank=place[0], step=place[1]), given[place]) or (), found)
            for place, found in units.items()
        }

    def _derive_calls(self) -> list[Call]:
        """Return the calls of models by rank and number, and all others as they are, given what rank 0 makes."""
        calls: list[Call] = []
        for call in self.whole.calls():
            rank, number = self._places.get((call.rank, call.step), {}).get((call.module, call.call), (0, call.call))
            calls.append(_move(call, rank, number))
        first = {_name(call): call.order for call in calls if not call.rank}
        partner = {(call.step, call.order): first.get(_name(call), call.order) for call in calls if call.rank}
        calls = [call if call.rank else _take_from_first(call, partner) for call in calls]
        return sorted(calls, key=lambda call: (call.rank, call.step, call.order))


def _count_wholes(
    ran: tuple[RanInAll, ...], given: Mapping[_Place, Sequence[_Given]], units: Mapping[_Place, _Units]
) -> tuple[RanInAll, ...]:
    """Return what the rank ran in all with calls of whole batches; as it is, if not all of its calls were recorded."""
    if len(ran) != 1 or sum(ran[0].calls.values()) != sum(map(len, given.values())):
        return ran
    calls = dict(ran[0].calls)
    for place, found in units.items():
        for members in found:
            paths = given[place][members[0]]
            models = [name for name in calls if not name or all(path.startswith(f"{name}.") for path in paths)]
            if models:
                calls[max(models, key=len)] -= len(members) - 1
    return (replace(ran[0], calls=calls),)


def _place_modules(entered: Sequence[Mapping[str, Sequence[int]]], units: _Units) -> dict[tuple[str, int], tuple[int, int]]:
    """Return module and number of each of its calls -> the part (rank) that it belongs to, and its number there."""
    placed: dict[tuple[str, int], tuple[int, int]] = {}
    before = defaultdict[str, int](int)
    behind = [len(entered) - 1]  # what runs after the last call of a model
    for members in (*units, behind):
        most: dict[str, int] = {}
        for rank, member in enumerate(members):
            for module, numbers in entered[member].items():
                placed |= {(module, number): (rank, before[module] + place) for place, number in enumerate(numbers)}
                most[module] = max(most.get(module, 0), len(numbers))
        for module, count in most.items():
            before[module] += count
    return placed


def _name(call: Call) -> tuple[object, ...]:
    return call.step, call.level, call.module, call.call, call.operator, call.ordinal, call.phase


def _move(call: Call, rank: int, number: int) -> Call:
    """Return a call, with its records, of another rank and number."""
    if call.module == OUTSIDE or (rank == call.rank and number == call.call):
        return call
    inputs, outputs = (
        tuple(msgspec.structs.replace(record, whose=record.whose._replace(call=number, rank=rank)) for record in records)
        for records in (call.inputs, call.outputs)
    )
    return msgspec.structs.replace(call, call=number, rank=rank, inputs=inputs, outputs=outputs)


def _take_from_first(call: Call, partner: Mapping[tuple[int, int], int]) -> Call:
    """Return a call whose inputs come from the joined calls: those of further parts have the place of the first."""
    inputs = tuple(
        msgspec.structs.replace(record, source=(partner[call.step, record.source[0]], record.source[1]))
        if record.source is not None and (call.step, record.source[0]) in partner
        else record
        for record in call.inputs
    )
    return call if inputs == call.inputs else msgspec.structs.replace(call, inputs=inputs)

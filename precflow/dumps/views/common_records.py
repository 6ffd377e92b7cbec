"""Two dumps of which another tool has written one or both, brought to what both can hold.

What only one format keeps is no difference between two runs, so it is left out of both sides and said:

* A dump of operators alone, without modules, is compared with operators alone: all are ``(outside)``, numbered in order.
* Tools that do not record the model as a whole do not tell its own operators from those behind it: both are ``(outside)``.
* Where tools write the separators of a name in two ways (``net/conv1``, ``net_conv1``), both sides have one spelling.
* What the other tool never records: the model itself, the state of an optimizer, backward of single operators, aten operators.
* Weights, inputs and tensors are the same if content ids of one kind are equal: of ours, or of one checksum. Where a side kept
  statistics alone, the smallest and largest value of a weight stand for it.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from precflow.agent.contract import BACKWARD, FORWARD, MODULE, OPTIMIZER, OUTSIDE, ROOT_MODULE
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES
from precflow.dumps.foreign import RANGE, enter, identify_range, kind_of
from precflow.dumps.graph_files import spell
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.derived import DerivedDump
from precflow.errors import DumpError

Place = tuple[int, int]  # rank and step
_OF_MODULES, _OF_MODEL, _OF_OPTIMIZER = "calls of modules", "calls of the whole model", "tensors of the optimizer"
_BY_NAME = "gradients of arguments that go by name"
_DOING_NOTHING, _MAKING = (
    "operators that returned what they were given",
    "operators that make tensors of nothing (zeros, arange)",
)


class CommonRecords(DerivedDump):
    """One side of two dumps, as far as both formats can hold it.

    Args:
        whole: The dump.
        calls: Its calls as they are seen.
        weights: Its weights, by names that both sides have.
        inputs: Its inputs, the same.
        kinds: Kinds of content ids that the other side has too; others are no content ids here.
        left_out: What is left out, in words.
        fused: Operators that are computed inside of others, by names of the other side.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what is seen of a side
        self,
        whole: Dump,
        calls: Sequence[Call],
        weights: ContentEntries,
        inputs: ContentEntries,
        kinds: frozenset[str],
        left_out: Sequence[str],
        fused: Mapping[str, str],
    ) -> None:
        super().__init__(whole, replace(whole.header, weights=weights, inputs=inputs, fused=fused))
        self._kept = list(calls) if kinds >= _list_kinds(calls) else [_without_other_kinds(call, kinds) for call in calls]
        self.left_out = tuple(left_out)

    def _derive_calls(self) -> list[Call]:
        return self._kept


def see_common(reference: Dump, target: Dump) -> tuple[Dump, Dump]:
    """Return both dumps with the calls that both formats can hold; the dumps themselves if precflow wrote both.

    Args:
        reference: The reference's dump.
        target: The target's.
    """
    dumps = (reference, target)
    if not (reference.header.tool or target.header.tool) or any(isinstance(dump, CommonRecords) for dump in dumps):
        return reference, target
    pair: tuple[Any, Any] = (reference, target)
    return _see_common(*pair)


@functools.lru_cache(maxsize=1)  # every stage of a comparison asks for the same two
def _see_common(reference: Any, target: Any) -> tuple[Dump, Dump]:
    here, there = reference.calls(), target.calls()
    left_out = (Counter[str](), Counter[str]())
    names: tuple[dict[str, str], dict[str, str]] = ({}, {})  # place of a weight -> its name
    is_mixed = reference.header.tool != target.header.tool
    has_one_root = _has_root(here) != _has_root(there)
    flat = [
        bool(calls) and not any(call.level == MODULE or call.module != OUTSIDE for call in calls) for calls in (here, there)
    ]
    has_no_modules = any(flat) and not all(flat)
    if not (is_mixed or has_one_root or has_no_modules) and _are_alike(reference, target):
        return reference, target
    if is_mixed or has_one_root or has_no_modules:
        here = _move_outside(here, left_out[0], names[0], everything=has_no_modules)
        there = _move_outside(there, left_out[1], names[1], everything=has_no_modules)
    fused = [dict(dump.header.fused) for dump in (reference, target)]
    if is_mixed:
        here, there = _spell_alike(here, there, fused)
        here, there = _leave_out(here, there, left_out[0]), _leave_out(there, here, left_out[1])
    arguments = _find_common_arguments(here, there) if is_mixed else None
    here, there = _number_anew(here, arguments), _number_anew(there, arguments)
    sides = (
        _Side(reference, here, names[0] if has_no_modules else None),
        _Side(target, there, names[1] if has_no_modules else None),
    )
    kinds = _list_kinds(here) & _list_kinds(there)
    weights, inputs = _match(*sides, "weights"), _match(*sides, "inputs")
    seen = [
        CommonRecords(
            side.dump,
            side.calls,
            enter(weights[number]),
            enter(inputs[number]),
            kinds,
            [f"{count} {what}" for what, count in left_out[number].items() if count],
            fused[number],
        )
        for number, side in enumerate(sides)
    ]
    return seen[0], seen[1]


def _are_alike(reference: Dump, target: Dump) -> bool:
    """Tell whether two dumps of one tool know the same weights and inputs, and all by content ids of one kind."""
    for here, there in (
        (reference.header.weights.entries, target.header.weights.entries),
        (reference.header.inputs.entries, target.header.inputs.entries),
    ):
        kinds = {kind_of(entry.content) for entry in (*here.values(), *there.values())}
        if here.keys() != there.keys() or len(kinds) > 1 or any(here[name].dtype != there[name].dtype for name in here):
            return False
    return len(_list_kinds(reference.calls()) | _list_kinds(target.calls())) <= 1


def _has_root(calls: Sequence[Call]) -> bool:
    """Tell whether the whole model is among the calls; msprobe has it only where a wrapper is around it."""
    return any(call.module == ROOT_MODULE and not call.operator for call in calls)


def _move_outside(calls: Sequence[Call], left_out: Counter[str], names: dict[str, str], *, everything: bool) -> list[Call]:
    """Return the calls with the model's own operators outside of it, numbered by operator and step in order of completion.

    Args:
        calls: Calls of one side.
        left_out: Counts what is left out.
        names: Gets the name of each weight by the place that it goes by.
        everything: All operators are moved, and calls of modules are left out.
    """
    counts = Counter[tuple[Place, str]]()
    numbers: dict[tuple[Place, int], int] = {}
    moved = list[Call]()
    for call in calls:
        place = (call.rank, call.step)
        if not call.operator:
            if everything:
                left_out[_OF_MODULES] += 1
            elif call.module == ROOT_MODULE and call.phase != OPTIMIZER:
                left_out[_OF_MODEL] += 1
            else:
                moved.append(call)
        elif not everything and call.module not in {ROOT_MODULE, OUTSIDE}:
            moved.append(call)
        elif call.phase == FORWARD:
            numbers[place, call.order] = counts[place, call.operator]
            counts[place, call.operator] += 1
            moved.append(_put_outside(call, numbers[place, call.order], names if everything else None))
        else:  # of the backward pass: by the number of its forward
            known = [numbers[place, order] for order in call.forward if (place, order) in numbers]
            moved.append(_put_outside(call, known[0] if known else call.ordinal, names if everything else None))
    return moved


def _put_outside(call: Call, ordinal: int, names: dict[str, str] | None) -> Call:
    """Return an operator outside of any module; with ``names``, weights go by the place where they are read."""

    def rename(record: Record) -> Record:
        """Return a record outside of modules, with the weight's common name."""
        weight, whose = record.weight, record.whose._replace(module=OUTSIDE, call=0, ordinal=ordinal)
        if weight and names is not None:
            weight = f"{call.operator}.{ordinal}.{record.index}"
            names.setdefault(weight, record.weight)
        return msgspec.structs.replace(record, whose=whose, weight=weight)

    return msgspec.structs.replace(
        call,
        module=OUTSIDE,
        class_name="",
        call=0,
        ordinal=ordinal,
        inputs=tuple(map(rename, call.inputs)),
        outputs=tuple(map(rename, call.outputs)),
    )


def _spell_alike(here: list[Call], there: list[Call], fused: Sequence[dict[str, str]]) -> tuple[list[Call], list[Call]]:
    """Return the calls with one spelling of names that tools write in two ways, ``net.conv1`` or ``net_conv1``.

    Only a name that the other side does not have, and that fits exactly one of its names, is changed: to the one with more
    separators. Operators in ``fused`` get the other side's spelling, for they are looked up there.
    """
    names = [{call.module for call in calls} for calls in (here, there)]
    spelled = [_group_by_spelling(each) for each in names]
    changed: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for spelling in spelled[0].keys() & spelled[1].keys():
        ours, theirs = spelled[0][spelling], spelled[1][spelling]
        if len(ours) == len(theirs) == 1 and ours != theirs:
            one, other = ours[0], theirs[0]
            if one.count(".") < other.count("."):
                changed[0][one] = other
            else:
                changed[1][other] = one
    for number in (0, 1):
        others = {changed[1 - number].get(name, name) for name in names[1 - number]}
        by_spelling = _group_by_spelling(others)
        own = changed[number]
        fused[number].update(
            {
                by_spelling[spell(name)][0]: own.get(around, around)
                for name, around in fused[number].items()
                if name not in others and len(by_spelling.get(spell(name), ())) == 1
            }
        )
    return [_rename(call, changed[0]) for call in here], [_rename(call, changed[1]) for call in there]


def _group_by_spelling(names: Iterable[str]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for name in sorted(names):
        if name:
            found[spell(name)].append(name)
    return found


def _rename(call: Call, names: Mapping[str, str]) -> Call:
    """Return a call with another name of its module."""
    name = names.get(call.module)
    if name is None:
        return call

    def rename(record: Record) -> Record:
        """Put a record into the module of that name."""
        return msgspec.structs.replace(record, whose=record.whose._replace(module=name))

    return msgspec.structs.replace(
        call, module=name, inputs=tuple(map(rename, call.inputs)), outputs=tuple(map(rename, call.outputs))
    )


def _leave_out(calls: Sequence[Call], others: Sequence[Call], left_out: Counter[str]) -> list[Call]:
    """Return the calls of one side without those of a kind that the other side has none of."""
    kinds, operators = {_sort(call) for call in others}, {call.operator for call in others}
    returned = {record.identity for call in others if call.phase == BACKWARD for record in call.outputs}
    updated = {record.identity for call in others if call.phase == OPTIMIZER for record in call.outputs}
    kept = list[Call]()
    for call in calls:
        if _sort(call) not in kinds:
            left_out[_describe(call)] += 1
        elif call.operator and _does_nothing(call):  # ours leave out what returns the tensor that it was given
            left_out[_DOING_NOTHING] += 1
        elif call.operator and not call.inputs and call.operator not in operators:
            left_out[_MAKING] += 1
        elif call.phase == BACKWARD and not call.operator:  # other tools have no gradients of arguments that go by name
            outputs = tuple(record for record in call.outputs if record.index.isdigit() or record.identity in returned)
            left_out[_BY_NAME] += len(call.outputs) - len(outputs)
            kept.append(msgspec.structs.replace(call, outputs=outputs))
        elif call.phase != OPTIMIZER:
            kept.append(call)
        else:  # parameter by parameter: other tools have the weights behind a step as far as the next step was recorded
            outputs = tuple(record for record in call.outputs if record.identity in updated)
            left_out[_OF_OPTIMIZER] += len(call.outputs) - len(outputs)
            kept += [msgspec.structs.replace(call, outputs=outputs)] if outputs else []
    return kept


def _does_nothing(call: Call) -> bool:
    """Tell whether an operator returned its first input as it was, such as a dropout in evaluation."""
    if len(call.outputs) != 1 or not call.inputs or call.movement:
        return False
    given, made = call.inputs[0], call.outputs[0]
    return bool(made.known) and made.known == given.known and made.shape == given.shape


def _sort(call: Call) -> tuple[str, str, bool]:
    return call.level, call.phase, bool(call.operator)


def _describe(call: Call) -> str:
    what = "operators" if call.operator else "modules"
    return f"calls of {what} ({call.level}, {call.phase})"


def _find_common_arguments(here: Sequence[Call], there: Sequence[Call]) -> dict[str, frozenset[str]]:
    """Return operator -> the arguments that both tools write down by the same name."""
    names = [defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)]
    for calls, found in zip((here, there), names, strict=True):
        for call in calls:
            found[call.operator] |= call.arguments.keys()
    return {operator: frozenset(names[0][operator] & names[1][operator]) for operator in names[0] if operator}


def _number_anew(calls: Sequence[Call], arguments: Mapping[str, frozenset[str]] | None) -> list[Call]:
    """Return the calls with orders without gaps, and what they say of other calls with these orders.

    Args:
        calls: Calls of one side.
        arguments: Operator -> the arguments that are kept; ``None`` keeps all.
    """
    counts = Counter[Place]()
    orders: dict[tuple[Place, int], int] = {}
    for call in calls:
        place = (call.rank, call.step)
        orders[place, call.order] = counts[place]
        counts[place] += 1
    if arguments is None and all(old == new for (_, old), new in orders.items()):
        return list(calls)
    return [_renumber(call, orders, arguments) for call in calls]


def _renumber(call: Call, orders: Mapping[tuple[Place, int], int], arguments: Mapping[str, frozenset[str]] | None) -> Call:
    place = (call.rank, call.step)
    order = orders[place, call.order]

    def renumber(record: Record) -> Record:
        """Return a record with the new numbers of its call and of its maker."""
        made = record.source
        source = None if made is None or (place, made[0]) not in orders else (orders[place, made[0]], made[1])
        return msgspec.structs.replace(record, whose=record.whose._replace(order=order), source=source)

    return msgspec.structs.replace(
        call,
        order=order,
        arguments=call.arguments
        if arguments is None
        else {name: value for name, value in call.arguments.items() if name in arguments.get(call.operator, ())},
        forward=tuple(orders[place, each] for each in call.forward if (place, each) in orders),
        inputs=tuple(map(renumber, call.inputs)),
        outputs=tuple(map(renumber, call.outputs)),
    )


class _Side:
    """One of the two dumps, with what is the same or not at the start.

    Args:
        dump: The dump as it is.
        calls: Its calls as they are seen.
        names: Place of a weight -> its name, where weights go by the operators that read them, because one side does not know
            their names; ``None`` where they go by name.
    """

    def __init__(self, dump: Dump, calls: Sequence[Call], names: Mapping[str, str] | None) -> None:
        self.dump = dump
        self.calls = calls
        self._readers: dict[str, Record] = {}  # name of a weight -> the record of its first reader
        self.weights = dict(dump.header.weights.entries)
        # Without names of modules, calls have weights by place, and headers by name; a call that is left out may read a weight.
        for call in dump.calls() if names is None else calls:
            for record in call.inputs if call.phase == FORWARD and not call.rank else ():
                if record.weight:
                    self._readers.setdefault(record.weight, record)
        if names is not None:
            entries = dump.header.weights.entries
            self.weights = {
                place: ContentEntry(record.content, record.dtype, record.shape) if record.content else entries[names[place]]
                for place, record in self._readers.items()
                if record.content or names.get(place) in entries
            }

    def inputs(self, other: _Side) -> dict[str, ContentEntry]:
        """Return what the first call that both sides have in a step is given, but for weights, by step, rank and index."""
        shared = {_name(call) for call in other.calls if call.phase == FORWARD}
        found: dict[str, ContentEntry] = {}
        seen = set[Place]()
        for call in self.calls:
            data = [record for record in call.inputs if not record.weight]
            place = (call.rank, call.step)
            if call.phase != FORWARD or place in seen or not data or _name(call) not in shared:
                continue
            seen.add(place)
            for record in data:
                name = f"{f'rank{call.rank}.' if call.rank else ''}step{call.step}.{record.index}"
                found[name] = ContentEntry(record.content, record.dtype, record.shape)
                self._readers[name] = record
        return found

    def find_range(self, name: str) -> str:
        """Return what stands for a content id where statistics are all that was kept; ``""`` if not even these were."""
        record = self._readers.get(name)
        if record is None:
            return ""
        if record.statistics is not None:
            return identify_range(record.dtype, record.shape, record.statistics.minimum, record.statistics.maximum)
        if not record.stored:
            return ""
        try:
            values = np.asarray(self.dump.tensor(record), np.float64)
        except (DumpError, TypeError):
            return ""
        if not values.size or not np.isfinite(values).all():
            return ""
        return identify_range(record.dtype, record.shape, float(values.min()), float(values.max()))


def _name(call: Call) -> tuple[str, int, str, int, int, int]:
    return call.module, call.call, call.operator, call.ordinal, call.step, call.rank


def _match(here: _Side, there: _Side, what: str) -> tuple[dict[str, ContentEntry], dict[str, ContentEntry]]:
    """Return the weights or the inputs that both sides know, each pair by content ids of one kind."""
    pairs = (here.weights, there.weights) if what == "weights" else (here.inputs(there), there.inputs(here))
    matched: tuple[dict[str, ContentEntry], dict[str, ContentEntry]] = ({}, {})
    for name in [name for name in pairs[0] if name in pairs[1]]:
        found = [pairs[0][name], pairs[1][name]]
        if not all(one.content for one in found) or kind_of(found[0].content) != kind_of(found[1].content):
            found = [
                one if kind_of(one.content) == RANGE else replace(one, content=side.find_range(name))
                for one, side in zip(found, (here, there), strict=True)
            ]
        if all(one.content for one in found):
            matched[0][name], matched[1][name] = (replace(one, rounded=_round_range(one)) for one in found)
    return matched


def _round_range(entry: ContentEntry) -> dict[str, str]:
    """Return type -> what stands for a weight after rounding to it, if its smallest and largest value are what is known."""
    if kind_of(entry.content) != RANGE or entry.dtype not in FLOATS:
        return {}
    ends = [None if end == "none" else float(end) for end in entry.content.partition(" ")[0].partition(":")[2].split(",")]
    finer = FLOATS.index(entry.dtype)
    return {
        dtype: identify_range(
            dtype, entry.shape, *(None if end is None else float(NUMPY_DTYPES[dtype].type(end)) for end in ends)
        )
        for dtype in ("float16", "bfloat16")
        if FLOATS.index(dtype) > finer
    }


def _list_kinds(calls: Sequence[Call]) -> frozenset[str]:
    """Return the kinds of content ids that records have."""
    return frozenset(kind_of(record.content) for call in calls for record in (*call.inputs, *call.outputs) if record.content)


def _without_other_kinds(call: Call, kinds: frozenset[str]) -> Call:
    """Return a call whose records keep content ids of some kinds alone; one of another kind becomes a mark."""

    def strip(record: Record) -> Record:
        """Return a record without a content id that does not count."""
        if not record.content or kind_of(record.content) in kinds or record.stored:
            return record
        return msgspec.structs.replace(record, content="", mark=record.content)

    return msgspec.structs.replace(call, inputs=tuple(map(strip, call.inputs)), outputs=tuple(map(strip, call.outputs)))

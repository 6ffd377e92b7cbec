"""Collectives as the agent records them: which ranks take part, and whose gradient or weight each of them carries.

What a collective carries is read from the records of its own side, so that it holds whatever the other side does: by data flow
(``all_reduce`` was given what ``head.weight/gradient`` left, perhaps through a ``clone``), else by equal bits, and for a bucket
of ``DistributedDataParallel`` by its size::

    gradients in order of arrival    head.weight 2560, norm.bias 32, norm.weight 32, ...
    bucket of 2624 elements          head.weight, norm.bias, norm.weight

Where parameters may be left unused, the wrapper keeps its first buckets. They were filled from the last parameter to the first,
and have room for parameters without a gradient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from precflow.agent import intake
from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, OUTSIDE
from precflow.dumps.records import Call, Record

COLLECTIVES = frozenset(
    "all_reduce all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor broadcast reduce gather scatter "
    "all_to_all all_to_all_single send recv".split()
)
REDUCING = frozenset("all_reduce reduce reduce_scatter reduce_scatter_tensor".split())
Place = tuple[int, int, int]
"""Rank, step and order of a call."""
_MOST_DIGITS = 10  # of a rank; the text may be a stranger's


def is_collective(call: Call) -> bool:
    """Tell whether a call is a collective, as the agent records it: with the ranks that take part."""
    return "group" in call.arguments and call.operator.removeprefix("aten.") in COLLECTIVES


def read_group(call: Call) -> tuple[int, ...]:
    """Return the ranks that take part in a collective; empty if the agent could not tell."""
    try:
        group = intake.parse_json(call.arguments.get("group", "[]"))
    except ValueError:
        return ()
    return tuple(group) if isinstance(group, list) and all(isinstance(rank, int) for rank in group) else ()


def read_rank(call: Call, argument: str) -> int:
    """Return the rank that an argument of a collective names, such as ``root``; -1 if it names none."""
    text = call.arguments.get(argument, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else -1


def find_carried(calls: Iterable[Call]) -> Mapping[Place, tuple[str, ...]]:
    """Return which parameters' gradients, or which weights, each collective carries; only those of which that is known.

    Args:
        calls: Calls of one dump.
    """
    every = list(calls)
    if not any(map(is_collective, every)):
        return {}
    ordered = sorted(every, key=lambda call: (call.rank, call.step, call.order))
    parameters = _list_parameters(ordered)
    carried: dict[Place, tuple[str, ...]] = {}
    for _, step in groupby(ordered, key=lambda call: (call.rank, call.step)):
        carried |= _Step(list(step), parameters).find()
    return carried


def _list_parameters(calls: Iterable[Call]) -> Mapping[str, int]:
    """Return parameter -> number of elements of all that any step updates, in order of the optimizer, which is the model's."""
    order: list[str] = []
    sizes: dict[str, int] = {}
    updates = (call for call in calls if call.phase == OPTIMIZER and call.outputs)
    for _, step in groupby(updates, key=lambda call: (call.rank, call.step)):
        place = 0
        for call in step:
            name = name_parameter(call, call.outputs[0])
            if name not in sizes:
                order.insert(place, name)
                sizes[name] = math.prod(call.outputs[0].shape)
            place = order.index(name) + 1
    return {name: sizes[name] for name in order}


def find_regrouped(reference: Iterable[Call], target: Iterable[Call]) -> Mapping[str, tuple[str, ...]]:
    """Return the records of collectives that one side makes in other groups: one bucket of gradients in place of seven.

    Such a collective has no partner, and the other side's collectives carry all of its parameters in the same step.

    Args:
        reference: Calls of the reference.
        target: Calls of the target, numbered as their partners are.

    Returns:
        Identity text of each of its records -> those of the optimizer's steps of these parameters. They tell whether both ways
        come to the same. A collective is left out if a parameter of it has no recorded step.
    """
    sides = [list(reference), list(target)]
    carried = [find_carried(side) for side in sides]
    if not any(carried):
        return {}
    known = [{_name_without_order(call) for call in side if is_collective(call)} for side in sides]
    everywhere = [{(rank, step, name) for (rank, step, _), names in one.items() for name in names} for one in carried]
    stepped = {
        (call.rank, call.step, name_parameter(call, call.outputs[0])): tuple(record.text for record in call.outputs)
        for call in sides[0]
        if call.phase == OPTIMIZER and call.outputs
    }
    regrouped: dict[str, tuple[str, ...]] = {}
    for side, names_of, there, elsewhere in zip(sides, carried, known[::-1], everywhere[::-1], strict=True):
        for call in side:
            if not is_collective(call) or _name_without_order(call) in there:
                continue
            names = [(call.rank, call.step, name) for name in names_of.get(_place(call), ())]
            if names and elsewhere.issuperset(names) and stepped.keys() >= {*names}:
                made = tuple(text for name in names for text in stepped[name])
                regrouped |= {record.text: made for record in (*call.inputs, *call.outputs)}
    return regrouped


class _Step:
    """The calls of one rank in one step, and what the collectives among them carry."""

    def __init__(self, calls: Sequence[Call], parameters: Mapping[str, int]) -> None:
        self._parameters = parameters
        self._calls = {call.order: call for call in calls}
        self._gradients: dict[str, int] = {}  # parameter -> number of elements, in order of arrival
        self._by_content: dict[str, set[str]] = defaultdict(set)
        self._carried: dict[Place, tuple[str, ...]] = {}
        for call in calls:
            for record in call.outputs if call.phase == GRADIENT else ():
                name = name_parameter(call, record)
                self._gradients.setdefault(name, math.prod(record.shape))
                if record.known:
                    self._by_content[record.known].add(name)

    def find(self) -> Mapping[Place, tuple[str, ...]]:
        """Return what each collective carries."""
        buckets = []
        for call in filter(is_collective, self._calls.values()):
            names = tuple(dict.fromkeys(name for record in call.inputs for name in self._name_content(record)))
            if names:
                self._carried[_place(call)] = names
            elif call.phase == BACKWARD and call.module == OUTSIDE and len(call.inputs) == 1:
                buckets.append(call)
        self._share_out(buckets)
        return self._carried

    def _name_content(self, record: Record) -> tuple[str, ...]:
        """Return whose gradients or weights a tensor holds; nothing if it is smaller than these, as their common norm is."""
        names = tuple(dict.fromkeys(self._find_names(record, set())))
        return names if sum(self._gradients.get(name, 0) for name in names) <= math.prod(record.shape) else ()

    def _find_names(self, record: Record, seen: set[int]) -> Iterator[str]:
        """Yield the parameters that a tensor is made of or is: by data flow, else by its bits.

        Args:
            record: The tensor.
            seen: Orders of the script's calls that were gone through already.
        """
        if record.weight:
            yield record.weight
            return
        call = None if record.source is None else self._calls.get(record.source[0])
        if call is None or record.source is None:
            names = self._by_content.get(record.known, set()) if record.known else set()
            yield from names if len(names) == 1 else ()  # gradients of zeros are alike
        elif call.phase == GRADIENT:
            yield from (name_parameter(call, output) for output in call.outputs)
        elif is_collective(call):
            yield from self._carried.get(_place(call), ())
        elif call.module == OUTSIDE and call.phase == FORWARD and call.order not in seen:
            for given in _list_inputs_of(call, record.source[1]):
                yield from self._find_names(given, seen if len(call.outputs) > 1 else seen | {call.order})

    def _share_out(self, buckets: Sequence[Call]) -> None:
        """Give each bucket the gradients that fill it: they were filled in order of arrival, or in reverse order of it.

        Failing that, in reverse order of the parameters, and only flat tensors of all of these are buckets: a layer may reduce
        its own statistics in backward, and the wrapper its list of what was used.
        """
        arrived = list(self._gradients)
        flat = [call for call in buckets if len(call.inputs[0].shape) == 1 and "float" in call.inputs[0].dtype]
        for calls, names, sizes in (
            (buckets, arrived, self._gradients),
            (buckets, arrived[::-1], self._gradients),
            (flat, arrived, self._gradients),
            (flat, list(self._parameters)[::-1], self._parameters),
        ):
            shares = _fill([math.prod(call.inputs[0].shape) for call in calls], names, sizes)
            if shares and (calls is buckets or sum(map(len, shares)) % len(names) == 0):
                own = [tuple(name for name in share if name in self._gradients) for share in shares]
                self._carried |= {_place(call): share for call, share in zip(calls, own, strict=True) if share}
                return


def _fill(buckets: Sequence[int], names: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return which of the names, in their order, fill each bucket of so many elements; nothing if they do not fill them all."""
    shares: list[tuple[str, ...]] = []
    left = names
    for bucket in buckets:
        left = left or names  # a loop may reduce at every micro batch
        size, count = bucket, 0
        while size > 0 and count < len(left):
            size -= sizes[left[count]]
            count += 1
        if size or not count:
            return []
        shares.append(tuple(left[:count]))
        left = left[count:]
    return shares


def _list_inputs_of(call: Call, output: str) -> tuple[Record, ...]:
    """Return the inputs that an output is made of: of ``_foreach_mul_`` the one at its place in the list, else all."""
    if len(call.outputs) == 1:
        return call.inputs
    own = tuple(record for record in call.inputs if record.index.rpartition(".")[2] == output.rpartition(".")[2])
    return own or call.inputs


def _place(call: Call) -> Place:
    return (call.rank, call.step, call.order)


def _name_without_order(call: Call) -> tuple[object, ...]:
    return (call.rank, call.step, call.level, call.module, call.call, call.operator, call.ordinal, call.phase)


def name_parameter(call: Call, record: Record) -> str:
    """Return the full name of a parameter by the record of its gradient.

    A model has no name of its own, so that a parameter of the model itself has no module before its name.
    """
    return f"{call.module}.{record.index}".lstrip(".")

"""Which calls of the sides' models are partners, in a step in which one side calls them once more.

Records are paired by name, and the calls of a model in a step differ in a number only. Behind a further forward (a trace, a
log, an evaluation), every later call, and all that runs inside, would be compared with another one::

    reference                    call 0 (batch a)   call 1 (batch b)
    target     call 0 (sample)   call 1 (batch a)   call 2 (batch b)      ->   call 2, call 0, call 1

So calls are paired, in their order, by what they are given. Those without a partner have nothing to be compared with: they
are a fact of the run. Three cases keep their numbers: both sides make as many calls; the calls between two pairs fit each other
in several ways, so that the sides were given other data; or records do not tell which modules ran in which call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from precflow.agent.contract import BACKWARD, FORWARD, MODULE, OUTSIDE, ROOT_MODULE
from precflow.dumps.header import ContentEntry
from precflow.dumps.origins import InputName, When, parse_name
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call
from precflow.dumps.views.alignment import align
from precflow.dumps.views.derived import DerivedDump

_Step = tuple[int, int]  # rank and step
_Given = Mapping[str, ContentEntry]  # what a call of a model is given, by the model's name of it
_Entered = Mapping[str, Sequence[int]]  # module -> numbers of its calls, in order
_SAME, _GRADIENT = 2, 1  # how well two calls fit: they are given the same, and a gradient goes through both or neither


@dataclass(frozen=True)
class FurtherCalls:
    """Calls of models that one side makes more in a step.

    Attributes:
        side: ``reference`` or ``target``.
        rank: Rank.
        step: Step.
        calls: Their numbers on that side.
        without_gradient: No gradient goes through them, and one goes through other calls of the step.
        placed: All other calls of the step have their partners' numbers, and can be compared.
    """

    side: str
    rank: int
    step: int
    calls: tuple[int, ...]
    without_gradient: bool
    placed: bool

    @property
    def text(self) -> str:
        """The calls in words."""
        calls = f"call{'s' * (len(self.calls) > 1)} {', '.join(map(str, self.calls))} of step {self.step}"
        of_rank = f" on rank {self.rank}" if self.rank else ""
        return f"only the {self.side} has {calls}{of_rank}{', without a gradient' * self.without_gradient}"


@dataclass(frozen=True)
class ModelCalls:
    """How calls of models are paired where one side makes more of them.

    Attributes:
        further: Those without a partner, a step at a time.
        numbers: Call of the target's models -> number of its partner on the reference; a further one gets a free number.
        modules: Rank, step, module and number of a call of a module of the target -> its number by the reference's count.
    """

    further: tuple[FurtherCalls, ...] = ()
    numbers: Mapping[When, int] = field(default_factory=dict)
    modules: Mapping[tuple[int, int, str, int], int] = field(default_factory=dict)

    def rename_inputs(self, entries: _Given, side: str) -> dict[str, ContentEntry]:
        """Return what a side's models are given, by the reference's numbers of calls, without what further calls are given."""
        left_out = {(one.rank, one.step, call) for one in self.further if one.placed and one.side == side for call in one.calls}
        renamed = {}
        for name, entry in entries.items():
            parts = parse_name(name)
            if parts is None or parts[:3] not in left_out:
                number = self.numbers.get(parts[:3]) if parts is not None and side == "target" else None
                renamed[name if number is None or parts is None else write_name(parts._replace(call=number))] = entry
        return renamed


NOTHING_FURTHER = ModelCalls()


class RenumberedModelCalls(DerivedDump):
    """The target's dump in which calls of its models, and of modules inside, have the numbers of their partners.

    Args:
        whole: The dump.
        calls: How calls are paired.
    """

    def __init__(self, whole: Dump, calls: ModelCalls) -> None:
        super().__init__(whole)
        self._paired = calls

    def _derive_calls(self) -> list[Call]:
        """Return the calls by their new numbers."""
        return [_renumber(call, self._paired.modules) for call in self.whole.calls()]


def pair_model_calls(reference: Dump, target: Dump) -> ModelCalls:
    """Return how calls of models are paired in the steps in which one side makes more of them.

    Args:
        reference: The reference's dump.
        target: The target's.
    """
    here, there = (group_by_call(dump.header.inputs.entries) for dump in (reference, target))
    further: list[FurtherCalls] = []
    numbers: dict[When, int] = {}
    modules: dict[tuple[int, int, str, int], int] = {}
    for place in sorted(here.keys() & there.keys()):
        if len(here[place]) == len(there[place]):
            continue
        steps = [_Inside(dump, place, given) for dump, given in ((reference, here[place]), (target, there[place]))]
        pairs = _pair(steps[0], steps[1])
        if pairs is None:
            continue
        placed = all(step.entered is not None for step in steps)
        further += _list_further(place, steps, pairs, placed=placed)
        if placed:
            numbers |= {(*place, own): number for own, number in _number(steps, pairs).items()}
            modules |= {(*place, *own): number for own, number in _number_modules(steps, pairs).items()}
    return ModelCalls(tuple(further), numbers, modules)


class _Inside:
    """The calls of models that a rank makes in a step.

    Args:
        dump: Their dump.
        place: Rank and step.
        given: What each of them is given, in order.

    Attributes:
        given: See above.
        entered: For each of them, which calls of modules run inside; ``None`` if the records do not tell.
        with_gradient: Those that a gradient goes through, by their place.
    """

    def __init__(self, dump: Dump, place: _Step, given: Sequence[_Given]) -> None:
        self.given = given
        calls = dump.calls(rank=place[0], step=place[1])
        self.entered = find_entered(calls, given)
        backward = {(call.module, call.call) for call in calls if call.phase == BACKWARD}
        self.with_gradient = {
            number
            for number, entered in enumerate(self.entered or ())
            if any((module, own) in backward for module, numbers in entered.items() for own in numbers)
        }

    def fit(self, number: int, other: _Inside, number_of_other: int) -> int:
        """Return how well a call of the other side fits one of this one; 0 if it is given something else."""
        contents = [
            sorted(entry.content for entry in side.given[at].values())
            for side, at in ((self, number), (other, number_of_other))
        ]
        if contents[0] != contents[1]:
            return 0
        return _SAME + _GRADIENT * ((number in self.with_gradient) == (number_of_other in other.with_gradient))


def find_entered(calls: Sequence[Call], given: Sequence[_Given]) -> list[_Entered] | None:
    """Return which calls of modules run inside of each call of a model, by their order; ``None`` if records do not tell.

    What a script calls of a model between two of its calls counts to the later one, on both sides.
    """
    whole = {
        (call.module, call.call): call.order
        for call in calls
        if (call.level, call.operator, call.phase) == (MODULE, "", FORWARD) and call.module != OUTSIDE
    }
    names = {module for module, _ in whole}
    before = defaultdict[str, int](int)
    ends: list[int] = []
    for entries in given:
        model = _find_model(entries, names)
        end = whole.get((model, before[model]))
        if end is None or (ends and end <= ends[-1]):
            return None
        before[model] += 1
        ends.append(end)
    entered: list[dict[str, list[int]]] = [defaultdict(list) for _ in range(len(ends) + 1)]
    known = set[tuple[str, int]]()
    for call in calls:
        if call.phase == FORWARD and call.module != OUTSIDE and (call.module, call.call) not in known:
            known.add((call.module, call.call))
            entered[bisect_left(ends, call.order)][call.module].append(call.call)
    is_complete = all((call.module, call.call) in known for call in calls if call.phase == BACKWARD and call.module != OUTSIDE)
    return list(entered) if is_complete else None


def _find_model(given: _Given, modules: set[str]) -> str:
    """Return the recorded module whose name is before all that a call is given; without one, it is the model itself."""
    before = [path.split(".") for path in given]
    shared = 0
    while all(len(parts) > shared + 1 and parts[: shared + 1] == before[0][: shared + 1] for parts in before):
        shared += 1
    prefixes = (".".join(before[0][:length]) for length in range(shared, 0, -1))
    return next((prefix for prefix in prefixes if prefix in modules), ROOT_MODULE)


def _pair(here: _Inside, there: _Inside) -> list[tuple[int, int]] | None:
    """Return pairs of calls, in order; ``None`` if the calls between two that are given the same fit in several ways."""
    rows, columns = len(here.given), len(there.given)
    same = align([[here.fit(row, there, column) for column in range(columns)] for row in range(rows)])
    pairs: list[tuple[int, int]] = []
    if not same:
        return None
    for (row, column), (next_row, next_column) in zip([(-1, -1), *same], [*same, (rows, columns)], strict=True):
        left = range(row + 1, next_row), range(column + 1, next_column)
        if len(left[0]) != len(left[1]) and left[0] and left[1]:
            return None
        pairs += zip(*left, strict=False)
        pairs += [(next_row, next_column)] if next_row < rows else []
    return pairs


def _list_further(
    place: _Step, steps: Sequence[_Inside], pairs: Sequence[tuple[int, int]], *, placed: bool
) -> Iterator[FurtherCalls]:
    for side, name in enumerate(("reference", "target")):
        paired = {pair[side] for pair in pairs}
        calls = tuple(number for number in range(len(steps[side].given)) if number not in paired)
        if calls:
            graded = steps[side].with_gradient
            yield FurtherCalls(name, *place, calls, bool(graded) and not graded & {*calls}, placed)


def _number(steps: Sequence[_Inside], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return number of a call of the target's models -> its number by the reference's count."""
    partners = {own: number for number, own in pairs}
    free = max(len(step.given) for step in steps)
    return {own: partners.get(own, free + own) for own in range(len(steps[1].given))}


def _number_modules(steps: Sequence[_Inside], pairs: Sequence[tuple[int, int]]) -> dict[tuple[str, int], int]:
    """Return module and number of each of its calls on the target -> its number by the reference's count.

    Inside of partners, the first call of a module is the partner of the first one.
    """
    here, there = steps[0].entered or [], steps[1].entered or []
    ends = [(len(here) - 1, len(there) - 1)]  # what runs behind the last call
    partners = {own: number for number, own in (*pairs, *ends)}
    order = sorted(range(len(there)), key=lambda own: (own not in partners, partners.get(own, own)))
    known = {module for entered in here for module in entered}
    free = defaultdict[str, int](int)
    for entered in here:
        for module, numbers in entered.items():
            free[module] = max(free[module], 1 + max(numbers))
    renumbered: dict[tuple[str, int], int] = {}
    for own in order:
        for module, numbers in there[own].items():
            theirs = here[partners[own]].get(module, ()) if own in partners else ()
            for place, number in enumerate(numbers):
                if module in known and place < len(theirs):
                    renumbered[module, number] = theirs[place]
                else:  # the reference calls this module by another name: count on in the order of the partners
                    renumbered[module, number] = free[module]
                    free[module] += 1
    return renumbered


def group_by_call(entries: _Given) -> dict[_Step, list[_Given]]:
    """Return rank and step -> what each call of a model was given, in order."""
    calls: dict[_Step, dict[int, dict[str, ContentEntry]]] = defaultdict(dict)
    for name, entry in entries.items():
        parts = parse_name(name)
        if parts is not None:
            calls[parts.rank, parts.step].setdefault(parts.call, {})[parts.path] = entry
    return {
        place: [by_number[number] for number in range(len(by_number))]
        for place, by_number in calls.items()
        if by_number.keys() == {*range(len(by_number))}  # a call that is given no tensor has no input
    }


def write_name(parts: InputName) -> str:
    """Return the name of an input as the agent writes it.

    >>> write_name(InputName(1, 2, 1, "ids")), write_name(InputName(0, 2, 0, "ids"))
    ('rank1.step2.call1.ids', 'step2.ids')
    """
    rank, call = f"rank{parts.rank}." if parts.rank else "", f"call{parts.call}." if parts.call else ""
    return f"{rank}step{parts.step}.{call}{parts.path}"


def _renumber(call: Call, numbers: Mapping[tuple[int, int, str, int], int]) -> Call:
    """Return a call, with its records, by its new number."""
    number = numbers.get((call.rank, call.step, call.module, call.call)) if call.phase in {FORWARD, BACKWARD} else None
    if number is None or call.module == OUTSIDE or number == call.call:
        return call

    inputs, outputs = (
        tuple(msgspec.structs.replace(record, whose=record.whose._replace(call=number)) for record in records)
        for records in (call.inputs, call.outputs)
    )
    return msgspec.structs.replace(call, call=number, inputs=inputs, outputs=outputs)

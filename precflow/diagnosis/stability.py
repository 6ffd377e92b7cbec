"""How stable a model is by itself, without another side: which operators enlarge rounding most, and which are not repeatable.

The reference was run again with disturbances as small as rounding (stage ``noise.reference``). What these change in the output
of an operator, over what they change in its inputs, is its growth::

    growth = floor of the output / max(largest floor of an input, one rounding of the output's type)

A growth of 1 hands on what arrives, a softmax of nearly equal scores less, a difference of nearly equal numbers many times as
much. So whoever has one machine alone sees where another one will differ first, and where more digits help most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from precflow.agent.contract import API, OPERATOR
from precflow.dumps.dtypes import float_facts, is_floating
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.judgement.floors import MAIN_METRIC, Floor


@dataclass(frozen=True)
class Growth:
    """What one call makes of rounding.

    Attributes:
        record: Identity text of the output.
        name: ``module / operator``.
        operator: Canonical name; the class of a module where operators were not recorded.
        phase: Of the call.
        arrives: Largest floor of an input, relative L2; 0 where nothing recorded arrives.
        leaves: Floor of the output.
        unit: One rounding of the output's type, relative.
        disturbance: Which disturbance changed it most.
        repeatable: A second run gave the same bits; ``None`` if that was not looked at.
        step: Step of the run.
    """

    record: str
    name: str
    operator: str
    phase: str
    arrives: float
    leaves: float
    unit: float
    disturbance: str
    repeatable: bool | None
    step: int

    @property
    def growth(self) -> float:
        """Floor of the output over what arrives, or over one rounding if that is larger."""
        return self.leaves / max(self.arrives, self.unit)


@dataclass(frozen=True)
class OperatorGrowth:
    """The calls of one operator.

    Attributes:
        operator: Its name.
        calls: How many there are.
        middle: Median growth.
        largest: Largest growth.
    """

    operator: str
    calls: int
    middle: float
    largest: float


@dataclass(frozen=True)
class Stability:
    """One side by itself.

    Attributes:
        growths: Of every call whose floor is known, in the order of the run.
        unrepeatable: Identity texts of records that a second run did not give again.
        repeat_checked: There was a second run.
    """

    growths: tuple[Growth, ...]
    unrepeatable: tuple[str, ...]
    repeat_checked: bool

    def rank(self) -> list[Growth]:
        """Return the growths, the largest first."""
        return sorted(self.growths, key=lambda each: -each.growth)

    def by_operator(self) -> list[OperatorGrowth]:
        """Return one entry for each operator, the one with the largest growth first."""
        found: dict[str, list[float]] = defaultdict(list)
        for each in self.growths:
            found[each.operator].append(each.growth)
        made = [OperatorGrowth(name, len(values), median(values), max(values)) for name, values in found.items()]
        return sorted(made, key=lambda each: -each.largest)


def measure_stability(dump: Dump, floors: Mapping[str, Floor]) -> Stability:
    """Return what every call makes of rounding.

    Args:
        dump: Dump of the side.
        floors: Identity text -> noise floor.
    """
    repeat = dump.header.repeat
    changed = frozenset(repeat.different)
    calls = dump.calls()
    arriving = _Arriving(calls, floors)
    growths = []
    for call in _choose_calls(calls):
        for record in call.outputs:
            leaves = _floor_of(record, floors)
            if leaves is None or call.movement or not is_floating(record.dtype):
                continue
            growths.append(
                Growth(
                    record=record.text,
                    name=call.name,
                    operator=call.operator or call.class_name,
                    phase=call.phase,
                    arrives=arriving.measure(call),
                    leaves=leaves,
                    unit=2.0 ** -float_facts(record.dtype).digits,
                    disturbance=floors[record.text].noises.get(MAIN_METRIC, ""),
                    repeatable=record.text not in changed if repeat.checked else None,
                    step=call.step,
                )
            )
    return Stability(tuple(growths), tuple(repeat.different), repeat.checked)


def _choose_calls(calls: Sequence[Call]) -> Iterator[Call]:
    """Yield the calls of operators, and of the innermost modules in which none was recorded."""
    levels = {call.level for call in calls if call.operator}
    finest = API if API in levels else OPERATOR
    with_operators = {(call.module, call.call, call.step, call.rank) for call in calls if call.operator}
    around = {parent for call in calls for parent in _list_parents(call.module)}
    for call in calls:
        if call.operator:
            if call.level == finest:
                yield call
        elif call.module not in around and (call.module, call.call, call.step, call.rank) not in with_operators:
            yield call


def _list_parents(module: str) -> list[str]:
    """Return the modules around one, the whole model among them.

    >>> _list_parents("layers.0.attn"), _list_parents("")
    (['', 'layers', 'layers.0'], [])
    """
    parts = module.split(".") if module else []
    return [".".join(parts[:count]) for count in range(len(parts))]


class _Arriving:
    """The floors of what calls are given.

    Args:
        calls: All calls of the dump.
        floors: Identity text -> floor.
    """

    def __init__(self, calls: Sequence[Call], floors: Mapping[str, Floor]) -> None:
        self._floors = floors
        self._calls = {(call.step, call.rank, call.order): call for call in calls}
        self._known: dict[tuple[int, int, int], float] = {}

    def measure(self, call: Call) -> float:
        """Return the largest floor of an input. A transpose has none of its own: what it was given counts."""
        key = call.step, call.rank, call.order
        if key not in self._known:
            self._known[key] = 0.0  # of a call that a broken dump has read itself
            sources = [record.source for record in call.inputs if record.source is not None]
            self._known[key] = max((self._measure_source(call, *source) for source in sources), default=0.0)
        return self._known[key]

    def _measure_source(self, reader: Call, order: int, index: str) -> float:
        call = self._calls.get((reader.step, reader.rank, order))
        if call is None:
            return 0.0
        floors = [_floor_of(record, self._floors) for record in call.outputs if record.index == index]
        known = floors[0] if floors else None
        return self.measure(call) if known is None else known


def _floor_of(record: Record, floors: Mapping[str, Floor]) -> float | None:
    floor = floors.get(record.text)
    return None if floor is None else floor.metrics.get(MAIN_METRIC)

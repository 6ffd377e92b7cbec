"""Where a model's inputs came from: from outside, or from what the model had computed before in the same run.

A decoder is given the tokens that it chose, a sampler the sample that its last prediction made, a stage of a pipeline what
another rank sent. Such inputs are no data. Within a step, records say which call made a tensor; across steps and ranks, equal
content ids say it::

    call 0    (model) -> logits
              logits -> getitem -> argmax -> getitem -> tokens      outside of any module, recorded at level `api`
    call 1    (model) is given the tokens: made by the model

Where only modules were recorded, tokens that are the largest logit of the call before are made by the model as well.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from precflow.agent.contract import FORWARD, OUTSIDE
from precflow.dumps.digest import content_id
from precflow.dumps.dtypes import NUMPY_DTYPES, is_floating
from precflow.dumps.header import ContentEntry
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

_NAME = re.compile(r"(?:rank(?P<rank>\d+)\.)?step(?P<step>\d+)\.(?:call(?P<call>\d+)\.)?(?P<path>.*)")
_MOST_CASTS = 256  # tensors of the step before that are cast, to see whether an input is one of them in another type

_MOST_LEAVES = 64  # that are followed; what is made of more has an unknown beginning

When = tuple[int, int, int]
"""Rank, step, and number of a model's call in it."""
_Output = tuple[int, int, int, str]  # rank, step, order of a call, index


class InputName(NamedTuple):
    """The parts of an input's name in a header, such as ``rank1.step2.call1.input_ids``.

    Attributes:
        rank: Rank.
        step: Step.
        call: Which call of a model in the step.
        path: What the model calls it.
    """

    rank: int
    step: int
    call: int
    path: str

    @property
    def place(self) -> tuple[int, int, int]:
        """Step, call and rank, by which inputs are ordered."""
        return self.step, self.call, self.rank


def parse_name(name: str) -> InputName | None:
    """Return the parts of an input's name; ``None`` for the inputs of a workload, which have no step.

    >>> parse_name("rank1.step2.call1.input_ids"), parse_name("input_ids")
    (InputName(rank=1, step=2, call=1, path='input_ids'), None)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return InputName(int(match["rank"] or 0), int(match["step"]), int(match["call"] or 0), match["path"])


@dataclass(frozen=True)
class Origin:
    """What made an input of a model.

    Attributes:
        whens: Rank, step and number of the model's call that made it, the last one that it depends on; several if the outputs
            of several calls have its bits.
        shown: The output that it is, in words.
        linked: Records of the same step lead from the model's output to it, so that a choice in between is judged there.
    """

    whens: frozenset[When]
    shown: str
    linked: bool = False


@dataclass(frozen=True)
class Script:
    """How operators outside of any model made an input of what no model has computed.

    Attributes:
        leaves: Content ids of what they began with.
        dtypes: Types of all tensors on the way.
    """

    leaves: frozenset[str]
    dtypes: frozenset[str]


class _Made(NamedTuple):
    """An output that the model made, or that was made of such ones: place, name, and the last model's call behind it."""

    rank: int
    step: int
    order: int
    text: str
    when: When


class _Flow(NamedTuple):
    """What all records of a dump say about where values come from.

    Attributes:
        made: Content id, or mark -> outputs of the model, and what was made of them.
        linked: Rank, step, order and index of such an output -> what it is.
        outside: Those that were made outside of the model.
        scripts: Rank, step, order and index of an output that no model had a part in -> how it was made.
    """

    made: Mapping[str, Sequence[_Made]]
    linked: Mapping[_Output, _Made]
    outside: Sequence[tuple[Record, _Made]]
    scripts: Mapping[_Output, Script]


class Origins:
    """Tells for the inputs of one dump what made them.

    Args:
        dump: The dump.
        numbers: Calls of its models that are named by another number, that of their partner on the other side.
    """

    def __init__(self, dump: Dump, numbers: Mapping[When, int] | None = None) -> None:
        self._dump = dump
        self._numbers = numbers or {}
        self._own_numbers = {(rank, step, number): own for (rank, step, own), number in self._numbers.items()}

    def find_record(self, name: str, entry: ContentEntry) -> Record | None:
        """Return the record of an input: what the model's own call was given, else the first call inside that was given it."""
        parts = self._parse(name)
        if parts is None:
            return next(iter(self._readers.get(entry.content, ())), None)
        here = [record for record in self._readers.get(entry.content, ()) if _is_at(record, parts)]
        if not here:
            return self._find_without_content(parts, entry)
        ends = self._ends.get((parts.rank, parts.step), [])
        after = ends[parts.call - 1] if 0 < parts.call <= len(ends) else -1
        behind = [record for record in here if record.order > after] or here
        return max(behind, key=lambda record: (not record.whose.operator, -_count_parents(record.whose.module), -record.order))

    def find_start(self, name: str, entry: ContentEntry) -> int:
        """Return the order of the last call before the model's call that an input belongs to; -1 if there is none."""
        parts, record = self._parse(name), self.find_record(name, entry)
        if parts is None or record is None:
            return -1
        borders = self._borders.get((parts.rank, parts.step), [])
        at = bisect_left(borders, record.order)
        return borders[at - 1] if at else -1

    def find(self, name: str, entry: ContentEntry) -> Origin | None:
        """Return what made an input of a model; ``None`` if nothing shows that the model did."""
        parts = self._parse(name)
        if parts is None:
            return None
        record = self.find_record(name, entry)
        linked = self._flow.linked.get(_name_source(record)) if record is not None else None
        if linked is not None:
            return Origin(frozenset([linked.when]), linked.text, linked=True)
        known = {entry.content, record.known if record is not None else ""} - {""}
        before = (parts.step, self.find_start(name, entry))
        candidates = [made for content in known for made in self._flow.made.get(content, ())]
        # What this rank has made before, else what another one has made, whose order is not known.
        own = [made for made in candidates if made.rank == parts.rank and (made.step, made.order) <= before]
        found = own or [made for made in candidates if made.rank != parts.rank and made.step <= parts.step]
        if found:
            return Origin(frozenset(made.when for made in found), max(found, key=lambda made: made[1:3]).text)
        return self._find_cast(parts, entry) or self._find_choice(parts, record)

    def find_script(self, name: str, entry: ContentEntry) -> Script | None:
        """Return how operators outside of any model made an input; ``None`` if that is unknown, or a model had a part in it."""
        record = self.find_record(name, entry)
        return self._flow.scripts.get(_name_source(record)) if record is not None else None

    def _parse(self, name: str) -> InputName | None:
        """Return the parts of an input's name, with the dump's own number of the call."""
        parts = parse_name(name)
        return parts if parts is None else parts._replace(call=self._own_numbers.get(parts[:3], parts.call))

    def _find_without_content(self, parts: InputName, entry: ContentEntry) -> Record | None:
        """Return the one record that can be an input, among those of which only statistics are kept."""
        fitting = {
            record.mark: record
            for record in self._inputs
            if not record.content
            and (record.shape, record.dtype) == (entry.shape, entry.dtype)
            and not record.whose.operator
            and _is_at(record, parts)
        }
        return next(iter(fitting.values())) if len(fitting) == 1 else None

    def _find_cast(self, parts: InputName, entry: ContentEntry) -> Origin | None:
        """Return the output that an input is in another type: a conversion is in no record, and its step may have ended."""
        if not is_floating(entry.dtype) or entry.dtype not in NUMPY_DTYPES:
            return None
        made = [
            (record, made)
            for record, made in self._flow.outside
            if record.whose.rank == parts.rank
            and record.whose.step in {parts.step - 1, parts.step}
            and record.shape == entry.shape
            and record.dtype != entry.dtype
            and record.stored
            and not record.part
        ]
        for record, source in reversed(made[-_MOST_CASTS:]):
            try:
                with np.errstate(all="ignore"):
                    cast = self._dump.tensor(record).astype(NUMPY_DTYPES[entry.dtype])
            except DumpError:
                continue
            if content_id(cast) == entry.content:
                return Origin(frozenset([source.when]), source.text)
        return None

    def _find_choice(self, parts: InputName, record: Record | None) -> Origin | None:
        """Return the output of the call before whose largest values an input's last numbers are, as in a greedy decoder."""
        if record is None or is_floating(record.dtype) or not record.stored or record.part or not record.shape:
            return None
        whose = record.whose
        before = [
            call
            for call in self._dump.calls(rank=parts.rank)
            if (call.module, call.operator, call.phase) == (whose.module, "", FORWARD)
            and (call.step, call.order) < (whose.step, whose.order)
        ]
        for output in before[-1].outputs if before else ():
            if is_floating(output.dtype) and output.stored and not output.part and len(output.shape) >= 2:
                try:
                    tokens, scores = self._dump.tensor(record), self._dump.tensor(output)
                except DumpError:
                    continue
                # [batch, places, vocabulary]: the last place chooses. The tokens are [batch, 1], or [batch, places so far].
                last = np.asarray(scores.astype(np.float64)).reshape(scores.shape[0], -1, scores.shape[-1])[:, -1]
                chosen = tokens.reshape(tokens.shape[0], -1)[:, -1]
                if chosen.shape[0] == last.shape[0] and last.shape[-1] > 1 and np.array_equal(last.argmax(-1), chosen):
                    return Origin(frozenset([self._find_when(before[-1])]), f"the largest of {output.text}")
        return None

    @functools.cached_property
    def _inputs(self) -> list[Record]:
        """What calls of modules, and of operators in them, were given in the forward, weights left out."""
        return [
            record
            for call in self._dump.calls()
            if call.phase == FORWARD and call.module != OUTSIDE
            for record in call.inputs
            if not record.weight
        ]

    @functools.cached_property
    def _readers(self) -> dict[str, list[Record]]:
        readers = defaultdict[str, list[Record]](list)
        for record in self._inputs:
            if record.content:
                readers[record.content].append(record)
        return readers

    @functools.cached_property
    def _ends(self) -> dict[tuple[int, int], list[int]]:
        """Rank and step -> the order of each call of a whole model."""
        ends = defaultdict[tuple[int, int], list[int]](list)
        for call in self._list_whole_calls():
            ends[call.rank, call.step].append(call.order)
        return ends

    @functools.cached_property
    def _borders(self) -> dict[tuple[int, int], list[int]]:
        """Rank and step -> the orders of calls that are in no running model: they end the models' calls before them."""
        borders = defaultdict[tuple[int, int], list[int]](list)
        whole = {(call.rank, call.step, call.order) for call in self._list_whole_calls()}
        for call in self._dump.calls():
            if call.module == OUTSIDE or call.phase != FORWARD or (call.rank, call.step, call.order) in whole:
                insort(borders[call.rank, call.step], call.order)
        return borders

    def _list_whole_calls(self) -> list[Call]:
        """Return the forward calls of modules that no other recorded module holds."""
        calls = [call for call in self._dump.calls() if call.level == "module" and call.phase == FORWARD]
        names = {call.module for call in calls}
        held = {name for name in names if any(parent in names for parent in _list_parents(name))}
        return [call for call in calls if call.module not in held]

    def _find_when(self, call: Call) -> When:
        """Return which call of a model a call is part of."""
        own = call.rank, call.step, bisect_left(self._ends.get((call.rank, call.step), []), call.order)
        return own if own not in self._numbers else (*own[:2], self._numbers[own])

    @functools.cached_property
    def _flow(self) -> _Flow:
        made = defaultdict[str, list[_Made]](list)
        linked: dict[_Output, _Made] = {}
        outside: list[tuple[Record, _Made]] = []
        scripts: dict[_Output, Script] = {}
        for call in self._dump.calls():
            if call.phase != FORWARD:
                continue
            given = [record for record in call.inputs if not record.weight]
            sources = {
                record.index: found
                for record in given
                if (found := linked.get(_name_source(record)) or (made[record.known][-1] if record.known in made else None))
            }
            is_inside = call.module != OUTSIDE
            when = self._find_when(call) if is_inside else max((one.when for one in sources.values()), default=(0, 0, 0))
            passed = {record.known for record in given if record.index not in sources}
            script = None if is_inside or sources else _add_to_script(call, scripts)
            for output in call.outputs:
                place = (call.rank, call.step, call.order, output.index)
                if script is not None:
                    scripts[place] = Script(script.leaves or frozenset([output.known]), script.dtypes | {output.dtype})
                # A mask or a position that the model only hands on, or makes of nothing, is not what it has computed.
                computes = is_inside and bool(call.inputs) and is_floating(output.dtype) and not call.movement
                if output.weight or output.known in passed or not (sources or computes):
                    continue
                one = _Made(call.rank, call.step, call.order, output.text, when)
                linked[place] = one
                # A single number that the model computes inside may equal a time or a scale from outside by chance.
                if output.known and (sources or math.prod(output.shape) > 1):
                    made[output.known].append(one)
                if not is_inside:
                    outside.append((output, one))
        return _Flow(dict(made), linked, outside, scripts)


def _name_source(record: Record) -> _Output:
    """Return the output that a tensor is, by rank, step, order and index; one that no call has if nothing says it."""
    order, index = record.source or (-1, "")
    return record.whose.rank, record.whose.step, order, index


def _add_to_script(call: Call, scripts: Mapping[_Output, Script]) -> Script | None:
    """Return how the outputs of a call outside of any model were made; ``None`` if that is unknown."""
    leaves, dtypes = set[str](), set[str]()
    for record in call.inputs:
        before = scripts.get(_name_source(record))
        if before is None and (record.source is not None or not record.known):
            return None
        leaves |= before.leaves if before is not None else {record.known}
        dtypes |= before.dtypes if before is not None else {record.dtype}
    return Script(frozenset(leaves), frozenset(dtypes)) if len(leaves) <= _MOST_LEAVES else None


def _is_at(record: Record, parts: InputName) -> bool:
    return (record.whose.rank, record.whose.step) == (parts.rank, parts.step)


def _count_parents(module: str) -> int:
    return sum(1 for _ in _list_parents(module))


def _list_parents(module: str) -> Iterator[str]:
    """Yield the names of all modules around a module, the model itself last."""
    while module:
        module = module.rpartition(".")[0]
        yield module

"""What a second pass records: the calls that the first pass could not clear, as rules of capture, within a budget.

The most suspect calls come first: those that introduce an error and the ones around them, then those that a sketch could not
decide, then all others that fail, then what surrounds data movement that gives other bits for equal ones: in 16 bits its error
may be within every limit, and only the evaluation says whether it is wrong. Inputs *and* outputs of a call are recorded, on
both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precflow.agent.contract import DETAIL_FACTS, KEPT, module_text
from precflow.agent.selection import DetailRule, Selection, literal_pattern
from precflow.diagnosis.findings import Region
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.nodes import CallKey, CallNode, key_of
from precflow.dumps.estimate import holds_tensor, storage_key, tensor_bytes
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

UNDECIDED = "undecided"

CallKind = tuple[str, str, str, str, int, int]
"""Level, module, operator, phase, step, rank: what a capture rule can match. It cannot pick one of several equal calls."""


@dataclass(frozen=True)
class SecondPass:
    """What a second pass records; a file that travels to where the sides run.

    Attributes:
        rules: Entries of ``capture.rules``: these calls, with their tensors.
        dumps: Side -> content of the dump of the first pass that they were chosen from.
        calls: Calls that the rules take on the reference.
        undecided: Records that a sketch could not decide.
        failing: Records that fail.
        moved: Calls of data movement that give other bits for equal ones.
        left_out: Calls that the budget had no room for.
        bytes: Side -> what its dump will take, about.
    """

    rules: tuple[Mapping[str, Any], ...] = ()
    dumps: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0
    undecided: int = 0
    failing: int = 0
    moved: int = 0
    left_out: int = 0
    bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """There is something to record."""
        return bool(self.rules)

    @property
    def why(self) -> str:
        """In words: what is recorded, or why nothing is."""
        if not (self.undecided or self.failing or self.moved):
            return "no second pass: nothing is suspect or undecided"
        moved = (self.moved, "movement of equal bits that differs")
        counts = ((self.failing, "failing record"), (self.undecided, "undecided record"), *([] if self.failing else [moved]))
        reasons = " and ".join(_count(count, what) for count, what in counts if count)
        left = f", {_count(self.left_out, 'call')} left out by capture.budget" if self.left_out else ""
        if not self.rules:
            return f"no second pass: {reasons}{left or ', and every tensor of them is kept already'}"
        return f"{_count(self.calls, 'call')} to look into ({reasons}){left}"


def choose_calls(  # noqa: PLR0913  two dumps, what was made of them, and two settings of the recipe, all by name
    reference: Dump,
    target: Dump,
    *,
    judged: Sequence[Judged],
    region: Region,
    budget: int = 0,
    rules: Sequence[DetailRule] = (),
) -> SecondPass:
    """Choose the calls of a second pass.

    Args:
        reference: Dump of the first pass; the graph is taken from it.
        target: The other side's. A call that it lacks cannot be compared and is not chosen.
        judged: Status of every record.
        region: Where the sides part.
        budget: Most bytes that a side's dump may take; 0 sets no bound.
        rules: ``capture.rules`` of the recipe: parts of tensors that it keeps stay parts.
    """
    nodes = build_graph(reference.calls())
    sides = (_SideBudget(reference), _SideBudget(target))
    moved = _list_wrongly_moved(nodes, target)
    chosen: list[CallKind] = []
    left_out = 0
    for kind in dict.fromkeys(_rank_kinds(nodes, judged, region, moved)):  # each once, where it is ranked first
        if not all(side.calls[kind] for side in sides) or not any(side.lacks_tensor(kind) for side in sides):
            continue
        if budget and max(side.size_with(kind) for side in sides) > budget:
            left_out += len(sides[0].calls[kind])  # smaller ones that come later may still fit
            continue
        chosen.append(kind)
        for side in sides:
            side.take(kind)
    return SecondPass(
        rules=tuple(_write_rules(chosen, Selection(rules=rules), sides[0])),
        dumps={"reference": reference.header.content, "target": target.header.content},
        calls=sum(len(sides[0].calls[kind]) for kind in chosen),
        undecided=sum(record.status == UNDECIDED for record in judged),
        failing=sum(record.status in MISALIGNED_STATUSES for record in judged),
        moved=len(moved),
        left_out=left_out,
        bytes={name: side.bytes for name, side in zip(("reference", "target"), sides, strict=True)},
    )


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def kind_of(call: Call) -> CallKind:
    """Return what a capture rule can match of a call."""
    return (call.level, call.module, call.operator, call.phase, call.step, call.rank)


class _SideBudget:
    """The calls of one side by kind, and how many bytes a dump of those taken so far needs: lines, and each content once."""

    def __init__(self, dump: Dump) -> None:
        self._keeps_weights = dump.header.capture.get("weights", KEPT) == KEPT
        self.calls: dict[CallKind, list[Call]] = defaultdict(list)
        self.bytes = 0
        self._contents: set[str] = set()
        for call in dump.calls():
            self.calls[kind_of(call)].append(call)

    def lacks_tensor(self, kind: CallKind) -> bool:
        """Tell whether a tensor of these calls is not kept yet."""
        return any(not record.stored for call in self.calls[kind] for record in self._stored_records(call))

    def size_with(self, kind: CallKind) -> int:
        """Return how many bytes the dump needs if it has these calls too."""
        found = self.calls[kind]
        records = [record for call in found for record in self._stored_records(call)]
        new = {storage_key(record): tensor_bytes(record) for record in records if storage_key(record) not in self._contents}
        lines = sum(len(call.inputs) + len(call.outputs) for call in found)
        return self.bytes + sum(new.values()) + DETAIL_FACTS["tensors"].line_bytes * lines

    def take(self, kind: CallKind) -> None:
        """Take these calls too."""
        self.bytes = self.size_with(kind)
        self._contents.update(storage_key(record) for call in self.calls[kind] for record in self._stored_records(call))

    def _stored_records(self, call: Call) -> Iterator[Record]:
        """Yield the records of a call whose tensors a second pass would store."""
        for record in (*call.inputs, *call.outputs):
            if holds_tensor(record, movement=call.movement, weights=self._keeps_weights):
                yield record


def _list_wrongly_moved(nodes: Mapping[CallKey, CallNode], target: Dump) -> list[CallNode]:
    """Return the data movement whose inputs have equal content ids on both sides and whose outputs have not."""
    there = {record.identity: record for call in target.calls() if call.movement for record in (*call.inputs, *call.outputs)}

    def differ(record: Record) -> bool | None:
        """Tell whether the content ids differ; ``None`` if one is missing, or the types differ."""
        other = there.get(record.identity)
        if other is None or not (record.content and other.content) or record.dtype != other.dtype:
            return None
        return record.content != other.content

    return [
        node
        for node in nodes.values()
        if node.call.movement
        and node.call.inputs
        and all(differ(record) is False for record in node.call.inputs)
        and any(differ(record) for record in node.call.outputs)
    ]


def _rank_kinds(
    nodes: Mapping[CallKey, CallNode], judged: Sequence[Judged], region: Region, moved: Sequence[CallNode]
) -> Iterator[CallKind]:
    """Yield kinds of calls, most suspect first; the same one may come several times."""
    owners = {record.text: node for node in nodes.values() for record in node.call.outputs}
    consumers: dict[CallKey, list[CallNode]] = defaultdict(list)
    for node in nodes.values():
        for edge in node.edges:
            if edge.source is not None:
                consumers[edge.source[0]].append(node)
    suspects = [owners[suspect.record] for suspect in region.suspects if suspect.record in owners]
    yield from (kind_of(node.call) for node in suspects)

    def list_around(node: CallNode) -> Iterator[CallKind]:
        """Yield the calls before and after: they show whether its inputs agree and what its error does."""
        before = [nodes[edge.source[0]] for edge in node.edges if edge.source is not None]
        yield from (kind_of(near.call) for near in (*before, *consumers[key_of(node.call)]) if not near.call.movement)

    for node in suspects:
        yield from list_around(node)
    known = [record for record in judged if record.record in owners]
    yield from (kind_of(owners[record.record].call) for record in known if record.status == UNDECIDED)
    yield from (kind_of(owners[record.record].call) for record in known if record.status in MISALIGNED_STATUSES)
    for node in moved:
        yield from list_around(node)


def _write_rules(kinds: Iterable[CallKind], selection: Selection, side: _SideBudget) -> Iterator[Mapping[str, Any]]:
    """Yield capture rules that match these kinds: modules with the same operators share one."""
    operators: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for kind in kinds:
        level, module, operator, phase, step, rank = kind
        class_name = side.calls[kind][0].class_name
        part = selection.choose(level, module, class_name, operator, phase, step, rank).part
        operators[(level, phase, step, rank, part, module)].append(operator)
    modules: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for (level, phase, step, rank, part, module), names in operators.items():
        modules[(level, phase, step, rank, part, tuple(sorted(names)))].append(module)
    for (level, phase, step, rank, part, names), sharing in modules.items():
        yield {
            "match": [literal_pattern(module_text(module)) for module in sharing],
            **({"operator": [literal_pattern(name) for name in names]} if any(names) else {}),
            "level": [level],
            "phase": [phase],
            "step": [step],
            "rank": [rank],
            **({"slices": part.slices, "sample": part.sample} if part is not None else {}),
        }

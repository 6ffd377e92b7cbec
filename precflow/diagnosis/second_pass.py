"""What a second pass looks into: the calls that the first one could not clear, as rules of capture, within a budget.

Most suspect first: the calls that introduce an error with those around them, then what a sketch could not decide, then
everything else that fails. Inputs *and* outputs of a call are recorded, on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precflow.agent.contract import DETAIL_FACTS, module_text
from precflow.agent.selection import DetailRule, Selection, literal_pattern
from precflow.diagnosis.findings import Region
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.localize import DumpWithCalls
from precflow.diagnosis.nodes import CallKey, CallNode, key_of
from precflow.dumps.estimate import holds_tensor, tensor_bytes
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

UNDECIDED = "undecided"

Kind = tuple[str, str, str, str, int, int]
"""What a rule can tell apart: level, module, operator, phase, step, rank."""


@dataclass(frozen=True)
class SecondPass:
    """The scope of a second pass; a file that travels to where the sides run.

    Attributes:
        rules: Entries of ``capture.rules``: these calls, with their tensors.
        dumps: Side -> content of the dump of the first pass that they were chosen from.
        calls: Calls that the rules take on the reference.
        undecided: Records that a sketch could not decide.
        failing: Records that fail.
        left_out: Calls that the budget had no room for.
        bytes: Side -> what its dump will take, about.
    """

    rules: tuple[Mapping[str, Any], ...] = ()
    dumps: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0
    undecided: int = 0
    failing: int = 0
    left_out: int = 0
    bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """There is something to look into."""
        return bool(self.rules)

    @property
    def why(self) -> str:
        """In words: what is looked into, or why nothing is."""
        if not (self.undecided or self.failing):
            return "no second pass: nothing is suspect or undecided"
        counts = ((self.failing, "failing record"), (self.undecided, "undecided record"))
        found = " and ".join(_some(count, what) for count, what in counts if count)
        left = f", {_some(self.left_out, 'call')} left out by capture.budget" if self.left_out else ""
        if not self.rules:
            return f"no second pass: {found}{left or ', and every tensor of them is kept already'}"
        return f"{_some(self.calls, 'call')} to look into ({found}){left}"


def choose(  # noqa: PLR0913  two dumps, what was made of them, and two settings of the recipe, all by name
    reference: DumpWithCalls,
    target: DumpWithCalls,
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
    sides = (_Side(reference.calls()), _Side(target.calls()))
    taken: list[Kind] = []
    left_out = 0
    for kind in dict.fromkeys(_wanted(nodes, judged, region)):
        if not all(side.calls[kind] for side in sides) or not any(side.lacks(kind) for side in sides):
            continue
        if budget and max(side.with_also(kind) for side in sides) > budget:
            left_out += len(sides[0].calls[kind])
            continue
        taken.append(kind)
        for side in sides:
            side.take(kind)
    return SecondPass(
        rules=tuple(_rules(taken, Selection(rules=rules), sides[0])),
        dumps={"reference": reference.header.content, "target": target.header.content},
        calls=sum(len(sides[0].calls[kind]) for kind in taken),
        undecided=sum(one.status == UNDECIDED for one in judged),
        failing=sum(one.status in MISALIGNED_STATUSES for one in judged),
        left_out=left_out,
        bytes={name: side.bytes for name, side in zip(("reference", "target"), sides, strict=True)},
    )


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def kind_of(call: Call) -> Kind:
    """Return what a rule can tell of a call: not how often it ran before."""
    return (call.level, call.module, call.operator, call.phase, call.step, call.rank)


class _Side:
    """The calls of one side by kind, and what a dump of those taken so far takes: lines, and each content once."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.calls: dict[Kind, list[Call]] = defaultdict(list)
        self.bytes = 0
        self._contents: set[str] = set()
        for call in calls:
            self.calls[kind_of(call)].append(call)

    def lacks(self, kind: Kind) -> bool:
        """Tell whether a tensor of these calls is not kept yet."""
        return any(not record.stored for call in self.calls[kind] for record in _records(call))

    def with_also(self, kind: Kind) -> int:
        """Return what the dump takes if it has these calls too."""
        found = self.calls[kind]
        new = {one.key: tensor_bytes(one) for call in found for one in _records(call) if one.key not in self._contents}
        lines = sum(len(call.inputs) + len(call.outputs) for call in found)
        return self.bytes + sum(new.values()) + DETAIL_FACTS["tensors"].line_bytes * lines

    def take(self, kind: Kind) -> None:
        """Take these calls too."""
        self.bytes = self.with_also(kind)
        self._contents.update(record.key for call in self.calls[kind] for record in _records(call))


def _records(call: Call) -> Iterator[Record]:
    """Yield the records of a call whose tensors a second pass would store."""
    return (record for record in (*call.inputs, *call.outputs) if holds_tensor(record, movement=call.movement))


def _wanted(nodes: Mapping[CallKey, CallNode], judged: Sequence[Judged], region: Region) -> Iterator[Kind]:
    """Yield kinds of calls, most suspect first; the same one several times."""
    owners = {record.text: node for node in nodes.values() for record in node.call.outputs}
    consumers: dict[CallKey, list[CallNode]] = defaultdict(list)
    for node in nodes.values():
        for edge in node.edges:
            if edge.source is not None:
                consumers[edge.source[0]].append(node)
    suspects = [owners[suspect.record] for suspect in region.suspects if suspect.record in owners]
    yield from (kind_of(node.call) for node in suspects)
    for node in suspects:
        before = [nodes[edge.source[0]] for edge in node.edges if edge.source is not None]
        yield from (kind_of(near.call) for near in (*before, *consumers[key_of(node.call)]) if not near.call.movement)
    statuses = [one for one in judged if one.record in owners]
    yield from (kind_of(owners[one.record].call) for one in statuses if one.status == UNDECIDED)
    yield from (kind_of(owners[one.record].call) for one in statuses if one.status in MISALIGNED_STATUSES)


def _rules(taken: Iterable[Kind], scope: Selection, side: _Side) -> Iterator[Mapping[str, Any]]:
    """Yield rules that match these kinds: modules with the same operators share one."""
    operators: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for kind in taken:
        level, module, operator, phase, step, rank = kind
        class_name = side.calls[kind][0].class_name
        part = scope.choose(level, module, class_name, operator, phase, step, rank).part
        operators[(level, phase, step, rank, part, module)].append(operator)
    modules: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for (level, phase, step, rank, part, module), names in operators.items():
        modules[(level, phase, step, rank, part, tuple(sorted(names)))].append(module)
    for (level, phase, step, rank, part, names), found in modules.items():
        yield {
            "match": [literal_pattern(module_text(module)) for module in found],
            **({"operator": [literal_pattern(name) for name in names]} if any(names) else {}),
            "level": [level],
            "phase": [phase],
            "step": [step],
            "rank": [rank],
            **({"slices": part.slices, "sample": part.sample} if part is not None else {}),
        }

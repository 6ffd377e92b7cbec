"""What a tensor carries of the difference between two sides, handed on along the graph."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.comparison.measure import Measure
from precflow.diagnosis.nodes import CallKey, CallNode, Edge, OutputKey
from precflow.diagnosis.unrecorded import Change, Look, Outputs, Search, change, outputs_of
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged

_JUDGED_FINE = frozenset({"pass", "blind"})


@dataclass(frozen=True, slots=True)
class Flow:
    """What arrives at a call or leaves it.

    Attributes:
        failing: A failing record is among what it is made of.
        use: Largest share of its limit that a passing record among them uses, 0 to 1.
        via: Name of that record's call.
        behind: A failing record is among its ancestors, though records between may pass again.
        accepted: Name of a call with an accepted difference, or ``""``.
        outside: The input or weight that differs between the sides before any operator ran, or ``""``.
        unknown: Name of a call that could not be compared, or ``""``.
        moved: Movement that changed values although its inputs are equal: its key and its output's identity.
    """

    failing: bool = False
    use: float = 0.0
    via: str = ""
    behind: bool = False
    accepted: str = ""
    outside: str = ""
    unknown: str = ""
    moved: tuple[CallKey, str] | None = None


CLEAN = Flow()
FAILING = Flow(failing=True, behind=True)


def merge(flows: Iterable[Flow]) -> Flow:
    """Return what several flows carry together; of names, the first."""
    merged = CLEAN
    for flow in flows:
        if flow is CLEAN or flow is merged:
            continue
        if merged is CLEAN:
            merged = flow
            continue
        louder = flow if flow.use > merged.use else merged
        merged = Flow(
            failing=merged.failing or flow.failing,
            use=louder.use,
            via=louder.via,
            behind=merged.behind or flow.behind,
            accepted=merged.accepted or flow.accepted,
            outside=merged.outside or flow.outside,
            unknown=merged.unknown or flow.unknown,
            moved=merged.moved or flow.moved,
        )
    return merged


class Tracer:
    """Hands flows from call to call; calls must come in order of completion.

    Args:
        nodes: The reference's graph.
        target: Calls of the target, to tell equal inputs.
        measures: Identity text -> measure.
        judged: Identity text -> status.
        look: Judges an input that no recorded call made, where that can be had.
    """

    def __init__(
        self,
        nodes: Mapping[CallKey, CallNode],
        target: Iterable[Call],
        measures: Mapping[str, Measure],
        judged: Mapping[str, Judged],
        look: Look | None = None,
    ) -> None:
        self._nodes = nodes
        self._measures = measures
        self._judged = judged
        self._target_calls = tuple(target)
        self._target = {record.identity: record for call in self._target_calls for record in (*call.inputs, *call.outputs)}
        self._leaving: dict[OutputKey, Flow] = {}
        self._failing: set[CallKey] = set()  # calls with an output that hands on a failing record
        self._moved_in: dict[CallKey, tuple[CallKey, str]] = {}  # calls with an output that hands on moved values
        self.unrecorded = Search(nodes, self._target, look)

    def status(self, record: str) -> Judged | None:
        """Return the status of a record, if it was judged at all."""
        return self._judged.get(record)

    def equal_input(self, record: Record) -> bool:
        """Tell whether an input has the same bits on both sides."""
        other = self._target.get(record.identity)
        known = bool(record.content or record.weight)
        return known and other is not None and other.content == record.content

    def changed(self, node: CallNode) -> Change | None:
        """Return which tensor of a call is not what its maker returned on either side, though it should be.

        One that arrives with the same bits on both sides is no matter.
        """
        for record in (*node.call.inputs, *node.call.outputs):
            if not self.equal_input(record):
                other = self._target.get(record.identity)
                found = change(record, self._made[0]) or (None if other is None else change(other, self._made[1]))
                if found is not None:
                    return found
        return None

    @functools.cached_property
    def _made(self) -> tuple[Outputs, Outputs]:
        """All outputs of both sides; needed for suspects alone."""
        return outputs_of(node.call for node in self._nodes.values()), outputs_of(self._target_calls)

    def arriving(self, node: CallNode) -> Flow:
        """Return what the inputs of a call carry; for a module also what fails inside it."""
        arriving = merge(self._along(edge) for edge in node.edges)
        if self._failing and any(key in self._failing for key in reversed(node.inside)):  # most often the last one
            return merge([arriving, FAILING])
        moved = next((self._moved_in[key] for key in node.inside if key in self._moved_in), None) if self._moved_in else None
        return merge([arriving, Flow(moved=moved)]) if moved else arriving

    def fails_before(self, module: CallNode, node: CallNode) -> bool:
        """Tell whether a failing record goes into a module, or is made inside it, before a call inside it runs."""
        arriving = merge(self._along(edge) for edge in module.edges)
        return arriving.failing or any(key in self._failing for key in module.inside if key < node.key)

    def leave(self, node: CallNode, arriving: Flow, texts: Sequence[str]) -> None:
        """Remember what each output of a call carries on; ``texts`` are their identities."""
        for record, text in zip(node.call.outputs, texts, strict=True):
            leaving = self._leaving[node.key, record.index] = self._leaves(node, text, arriving)
            if leaving.failing:
                self._failing.add(node.key)
            if leaving.moved is not None:
                self._moved_in.setdefault(node.key, leaving.moved)

    def role(self, node: CallNode, record: str, arriving: Flow) -> str:
        """Return the role of a record that does not fail: ``agrees``, ``accepted``, or what is known of one not judged."""
        status = self._judged[record].status
        measure = self._measures.get(record)
        if status == "accepted":
            return "accepted"
        if status in _JUDGED_FINE or (measure is not None and measure.equal):
            return "agrees"
        if status in INCOMPLETE_STATUSES or not node.call.movement:
            return "unknown"
        return "inherits" if arriving.failing or arriving.moved else "agrees"

    def _along(self, edge: Edge) -> Flow:
        if edge.source is not None:
            return self._leaving.get(edge.source, CLEAN)
        other = self._target.get(edge.record.identity)
        if other is None or other.dtype != edge.record.dtype or other.content == edge.record.content:
            return CLEAN
        kind = f"weight {edge.record.weight}" if edge.record.weight else f"input {edge.record.index}"
        return Flow(outside=kind)

    def _leaves(self, node: CallNode, record: str, arriving: Flow) -> Flow:
        judged = self._judged.get(record)
        if judged is not None and judged.status in MISALIGNED_STATUSES:
            return FAILING
        if judged is not None and judged.status in _JUDGED_FINE:
            return Flow(use=min(max(judged.ratio, 0.0), 1.0), via=node.call.name, behind=arriving.behind)
        if judged is not None and judged.status == "accepted":
            return Flow(use=1.0, via=node.call.name, behind=arriving.behind, accepted=node.call.name)
        return self._hands_on(node, record, arriving, incomplete=judged is not None and judged.status in INCOMPLETE_STATUSES)

    def _hands_on(self, node: CallNode, record: str, arriving: Flow, *, incomplete: bool) -> Flow:
        """Return what leaves a record that says nothing by itself."""
        measure = self._measures.get(record)
        if measure is not None and measure.equal:
            return CLEAN
        if incomplete:
            return merge([Flow(unknown=node.call.name), arriving])
        if self._moved(node, measure):
            return merge([arriving, Flow(moved=(node.key, record))])
        return arriving

    def _moved(self, node: CallNode, measure: Measure | None) -> bool:
        """Tell whether pure movement changed values: equal bits in, other bits of the same type out."""
        if not node.call.movement or measure is None or not node.edges or measure.reference_dtype != measure.target_dtype:
            return False
        return measure.join in {"paired", "shape"} and all(self.equal_input(edge.record) for edge in node.edges)

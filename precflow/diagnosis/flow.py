"""What each output carries of the difference between two sides, handed on from call to call along the graph.

A judged output decides for itself: a failing one hands on that it fails, a passing one how much of its limit it uses. Every
other output (data movement, integers, what could not be compared) hands on what arrived at its call.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precflow.agent.contract import BACKWARD, FORWARD, OUTSIDE, ROOT_MODULE
from precflow.comparison.measure import Measure
from precflow.diagnosis.interval import OwnInputs
from precflow.diagnosis.nodes import CallKey, CallNode, Edge, OutputKey, list_read_inputs
from precflow.diagnosis.unrecorded import CallsByKey, TensorChange, UnrecordedInputs, find_change, index_calls
from precflow.dumps.dtypes import is_floating
from precflow.dumps.records import Call, Record
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged

_WITHIN_LIMITS = frozenset({"pass", "blind"})
_UNCOMPARED = INCOMPLETE_STATUSES | {"covered", "near_tie", "not_comparable"}


@dataclass(frozen=True, slots=True)
class Flow:
    """What arrives at a call or leaves it.

    Attributes:
        failing: It is made of a failing record.
        use: Largest share of its limit that a passing record uses of those it is made of, 0 to 1.
        via: Name of that record's call.
        behind: A failing record is somewhere before it, even if records in between pass again.
        accepted: Name of a call with an accepted difference that it is made of, or ``""``.
        outside: The input or weight that differs between the sides before any operator ran, or ``""``.
        unknown: Name of a call that could not be compared, or ``""``.
        moved: Data movement that changed values although its inputs are equal: its key and its output's identity.
        given: A tensor of the forward that is no weight, that no recorded call made, and of which the target has another.
    """

    failing: bool = False
    use: float = 0.0
    via: str = ""
    behind: bool = False
    accepted: str = ""
    outside: str = ""
    unknown: str = ""
    moved: tuple[CallKey, str] | None = None
    given: Record | None = None


CLEAN = Flow()
FAILING = Flow(failing=True, behind=True)


def merge_flows(flows: Iterable[Flow]) -> Flow:
    """Return what several flows carry together; where each has a name, the first one's."""
    merged = CLEAN
    for flow in flows:
        if flow is CLEAN or flow is merged:  # most edges of a large graph: nothing is made anew for them
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
            given=merged.given or flow.given,
        )
    return merged


class Tracer:
    """Hands flows from call to call; calls must come in order of completion.

    Args:
        nodes: The reference's graph.
        target: Calls of the target, to recognise equal inputs.
        measures: Identity text -> measure.
        judged: Identity text -> status.
        judge_input: Judges an input that no recorded call made; ``None`` if that cannot be done.

    Attributes:
        unrecorded: Inputs that no recorded call made.
        inputs: The input tensors of calls, compared themselves.
    """

    def __init__(
        self,
        nodes: Mapping[CallKey, CallNode],
        target: Iterable[Call],
        measures: Mapping[str, Measure],
        judged: Mapping[str, Judged],
        judge_input: JudgeInput | None = None,
    ) -> None:
        self._nodes = nodes
        self._measures = measures
        self._judged = judged
        self._target_calls = tuple(target)
        self._target = {record.identity: record for call in self._target_calls for record in (*call.inputs, *call.outputs)}
        self._leaving: dict[OutputKey, Flow] = {}
        self._failing_forwards: dict[tuple[int, int], CallKey] = {}  # rank and step -> first such call of the forward
        self._failing: set[CallKey] = set()  # calls with an output that hands on a failing record
        # Module -> its first failing call, in each rank's present backward.
        self._failing_backwards: dict[tuple[int, int], dict[str, CallKey]] = defaultdict(dict)
        self._moved_in: dict[CallKey, tuple[CallKey, str]] = {}  # calls with an output that hands on moved values
        self.unrecorded = UnrecordedInputs(nodes, self._target, judge_input)
        self.inputs = OwnInputs(nodes, self._target_calls, self._target, measures, judged, judge_input)

    def status(self, record: str) -> Judged | None:
        """Return the status of a record, if it was judged at all."""
        return self._judged.get(record)

    def is_equal_input(self, record: Record) -> bool:
        """Tell whether an input has the same bits on both sides."""
        other = self._target.get(record.identity)
        known = bool(record.content or record.weight)
        return known and other is not None and not _differs(record, other)

    def find_other_data(self, node: CallNode) -> str:
        """Return the input of a forward call, such as ``input 1``, whose whole numbers differ though no call before it fails.

        It comes from the script, as labels do, perhaps through movement that one side alone makes; what another call computed
        on the target is no data. A floating one may have been computed there, by a cast say, and differ by rounding. ``""`` if
        there is none.
        """
        for edge in node.edges:
            if node.call.phase == FORWARD and not edge.record.weight and not is_floating(edge.record.dtype):
                other = self._target.get(edge.record.identity)
                differs = other is not None and other.content and edge.record.content and other.content != edge.record.content
                if differs and not self.inputs.is_computed_elsewhere(edge.record):
                    return f"input {edge.record.index}"
        return ""

    def find_other_weight(self, node: CallNode) -> str:
        """Return the weight of a call that is over its limit although no recorded call wrote it; ``""`` if none is.

        The weights that a run starts from are compared before it. This one was written since, by code that no record shows, as
        are the weights of a model that is an average of another one. A call of the target that reads another weight is no
        partner, and neither is one that reads what a recorded call has made of the weight.
        """
        for edge in node.edges:
            other = self._target.get(edge.record.identity)
            if other is not None and other.weight != edge.record.weight and (other.weight or other.source is not None):
                continue
            if edge.record.weight and edge.source is None and self._follow(edge).outside:
                judged = self.unrecorded.judge(edge.record)
                if judged is not None and judged.status in MISALIGNED_STATUSES:
                    return edge.record.weight
        return ""

    def find_given(self, node: CallNode, given: Record) -> tuple[Record, Judged] | None:
        """Return the input of a call in which a tensor from outside arrives and is over its limit, itself or after movement."""
        for edge in node.edges:
            if self._follow(edge).given is given:
                judged = self.unrecorded.judge(edge.record)
                if judged is not None and judged.status in MISALIGNED_STATUSES:
                    return edge.record, judged
        return None

    def find_change(self, node: CallNode) -> TensorChange | None:
        """Return a tensor of a call that changed, on either side, after the call that made it had returned it.

        A tensor that arrives with the same bits on both sides is passed over: its change cannot explain a difference.
        """
        for record in (*list_read_inputs(node.call), *node.call.outputs):
            if not self.is_equal_input(record):
                other = self._target.get(record.identity)
                here, there = self._calls
                change = find_change(record, here) or (None if other is None else find_change(other, there))
                if change is not None:
                    return change
        return None

    @functools.cached_property
    def _calls(self) -> tuple[CallsByKey, CallsByKey]:
        """All calls of both sides; made at the first suspect, because most runs have none."""
        return {key: node.call for key, node in self._nodes.items()}, index_calls(self._target_calls)

    def find_arriving(self, node: CallNode) -> Flow:
        """Return what the inputs of a call carry; for a module also what fails inside it."""
        arriving = merge_flows(self._follow(edge) for edge in node.edges)
        # Search from the end: if something inside a module fails, its last call most often does.
        if self._failing and any(key in self._failing for key in reversed(node.inside)):
            return merge_flows([arriving, FAILING])
        moved = next((self._moved_in[key] for key in node.inside if key in self._moved_in), None) if self._moved_in else None
        return merge_flows([arriving, Flow(moved=moved)]) if moved else arriving

    def fails_before(self, module: CallNode, node: CallNode) -> bool:
        """Tell whether a failing record goes into a module, or is made inside it before the call ``node`` runs."""
        arriving = merge_flows(self._follow(edge) for edge in module.edges)
        return arriving.failing or any(key in self._failing for key in module.inside if key < node.key)

    def fails_in_forward(self, node: CallNode) -> bool:
        """Tell whether a call of the same step's forward failed before ``node``."""
        return self._failing_forwards.get(node.key[:2], node.key) != node.key

    def fails_earlier(self, node: CallNode, *, inside: str | None = None) -> bool:
        """Tell whether a call failed before ``node`` in the same backward pass; gradients do not count, as nothing uses them.

        Args:
            node: A call of the backward pass or a gradient.
            inside: Only calls of modules inside this one count.
        """
        failing = self._failing_backwards.get(node.key[:2], {})
        modules = {module for module, key in failing.items() if key != node.key}
        if inside is None:
            return bool(modules)
        start = "" if inside == ROOT_MODULE else f"{inside}."
        return any(module.startswith(start) for module in modules - {OUTSIDE, inside})

    def remember_leaving(self, node: CallNode, arriving: Flow, texts: Sequence[str]) -> None:
        """Remember what each output of a call carries; ``texts`` are their identities."""
        call = node.call
        if call.phase == FORWARD and call.module == ROOT_MODULE and not call.operator:
            self._failing_backwards.pop(node.key[:2], None)  # what follows is the backward of another batch
        for record, text in zip(node.call.outputs, texts, strict=True):
            leaving = self._leaving[node.key, record.index] = self._find_leaving(node, text, arriving)
            if leaving.failing:
                self._failing.add(node.key)
                if call.phase == FORWARD:
                    self._failing_forwards.setdefault(node.key[:2], node.key)
                if call.phase == BACKWARD:
                    self._failing_backwards[node.key[:2]].setdefault(call.module, node.key)
            if leaving.moved is not None:
                self._moved_in.setdefault(node.key, leaving.moved)

    def find_role(self, node: CallNode, record: str, arriving: Flow) -> str:
        """Return the role of a record that does not fail: ``agrees`` or ``accepted``, and for one not judged what is known."""
        status = self._judged[record].status
        measure = self._measures.get(record)
        if status == "accepted":
            return "accepted"
        if status in _WITHIN_LIMITS or (measure is not None and measure.equal):
            return "agrees"
        if status in _UNCOMPARED or not node.call.movement:
            return "unknown"
        return "inherits" if arriving.failing or arriving.moved else "agrees"

    def _follow(self, edge: Edge) -> Flow:
        """Return what one edge carries; without a source, whether the sides were given different tensors from outside."""
        if edge.source is not None:
            leaving = self._leaving.get(edge.source, CLEAN)
            is_doubtful = edge.guessed and leaving.failing and edge.record.identity.phase != FORWARD
            return self._check_guess(edge.record, leaving) if is_doubtful else leaving
        other = self._target.get(edge.record.identity)
        if edge.record.identity.phase != FORWARD and not edge.record.weight:
            return CLEAN  # in backward, what no recorded call made comes from code in between and not from outside
        if other is None or other.dtype != edge.record.dtype or not _differs(edge.record, other):
            return CLEAN
        kind = f"weight {edge.record.weight}" if edge.record.weight else f"input {edge.record.index}"
        return Flow(outside=kind, given=None if edge.record.weight else edge.record)

    def _check_guess(self, record: Record, leaving: Flow) -> Flow:
        """Return what an input carries whose maker was guessed: by its own comparison if that says that it agrees."""
        if self.is_equal_input(record):
            return CLEAN
        judged = self.unrecorded.judge(record)
        if judged is None or judged.status not in _WITHIN_LIMITS:
            return leaving
        return Flow(use=min(max(judged.ratio, 0.0), 1.0), via=f"input {record.index}", behind=True)

    def _find_leaving(self, node: CallNode, record: str, arriving: Flow) -> Flow:
        judged = self._judged.get(record)
        if judged is not None and judged.status in MISALIGNED_STATUSES:
            return FAILING
        if judged is not None and judged.status in _WITHIN_LIMITS:
            # A passing record ends what failed before it, but `behind` remembers that there was something.
            return Flow(use=min(max(judged.ratio, 0.0), 1.0), via=node.call.name, behind=arriving.behind)
        if judged is not None and judged.status == "accepted":
            # It is over its limit with permission, so that what comes after it may be over its own for that reason alone.
            return Flow(use=1.0, via=node.call.name, behind=arriving.behind, accepted=node.call.name)
        return self._hand_on(node, record, arriving, incomplete=judged is not None and judged.status in _UNCOMPARED)

    def _hand_on(self, node: CallNode, record: str, arriving: Flow, *, incomplete: bool) -> Flow:
        """Return what an output carries that was not judged or could not be."""
        measure = self._measures.get(record)
        if measure is not None and measure.equal:
            return CLEAN
        if incomplete:
            return merge_flows([Flow(unknown=node.call.name), arriving])
        if self._moves_wrongly(node, measure):
            return merge_flows([arriving, Flow(moved=(node.key, record))])
        return arriving

    def _moves_wrongly(self, node: CallNode, measure: Measure | None) -> bool:
        """Tell whether data movement changed values: equal bits in, other bits of the same type out."""
        if not node.call.movement or measure is None or not node.edges or measure.reference_dtype != measure.target_dtype:
            return False
        return measure.join in {"paired", "shape"} and all(self.is_equal_input(edge.record) for edge in node.edges)


def _differs(record: Record, other: Record) -> bool:
    """Tell whether two records have different contents; a weight whose content one side did not keep says nothing."""
    if record.weight and other.weight and not (record.content and other.content):
        return False
    return record.content != other.content

"""Where two sides part: which calls introduce an error, and which records only inherit one.

A failing record *introduces* where nothing that goes into its call fails; otherwise it *inherits*. Records that are not
judged (movement, integers, what could not be compared) hand on what went into them. One pass in order of completion
decides, because every source of a call completed before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from precflow.agent.contract import module_text, parse_identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.flow import Flow, Tracer
from precflow.diagnosis.graph import build
from precflow.diagnosis.nodes import CallKey, CallNode
from precflow.diagnosis.unrecorded import Change, Look
from precflow.dumps.header import Entry, Header
from precflow.dumps.records import Call
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

ACCUMULATED = 0.5
"""Share of their limit that inputs may use before a failing output counts as accumulated rounding."""

_EQUAL = "its inputs are equal bit for bit"

AMPLIFIED = 4.0
"""Times its limit from which a failing output is more than the drift of inputs that use most of theirs."""


class Graphed(Protocol):
    """What is needed of a dump: its calls and its header."""

    @property
    def header(self) -> Header:
        """The typed view of ``dump.json``."""

    def calls(self) -> Sequence[Call]:
        """Return every call of the dump."""


def localize(
    reference: Graphed,
    target: Graphed,
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    look: Look | None = None,
) -> Region:
    """Return where the sides part.

    Suspects are operators where operators were recorded, else modules. Those whose inputs clearly agree come first, in
    order of the graph; those whose inputs already use more than half of their limit (accumulated rounding) follow.

    Args:
        reference: Dump of the side that the graph is taken from.
        target: Dump of the side under test.
        measures: Every measured pair.
        judged: Their statuses.
        look: Judges an input that no recorded call made; without it such an input counts as one that agrees.
    """
    nodes = build(reference.calls(), outside=_contents(reference.header.inputs.entries))
    worst_last = sorted(judged, key=lambda one: one.status in MISALIGNED_STATUSES)  # of records that share an identity
    tracer = Tracer(nodes, target.calls(), {one.record: one for one in measures}, {one.record: one for one in worst_last}, look)
    search = _Search(nodes, tracer)
    for node in nodes.values():
        search.visit(node)
    roles = {one.record: search.roles.get(one.record, "unknown") for one in judged}
    suspects = search.ranked() or _earliest(nodes, tracer)
    return Region(
        start=suspects[0].name if suspects else "",
        suspects=suspects,
        roles=roles,
        unrepeatable=(*_unrepeatable("reference", reference.header), *_unrepeatable("target", target.header)),
        notes=(*_differ_already(reference.header, target.header), *_notes(judged, roles, suspects, search)),
    )


class _Search:
    """One pass over the nodes; collects roles and suspects."""

    def __init__(self, nodes: Mapping[CallKey, CallNode], tracer: Tracer) -> None:
        self.nodes = nodes
        self.tracer = tracer
        self.roles: dict[str, str] = {}
        self.clear: dict[CallKey, Suspect] = {}
        self.accumulated: dict[CallKey, Suspect] = {}
        self.drifting = 0
        self.guessed = 0

    def visit(self, node: CallNode) -> None:
        """Give every judged output of a call its role."""
        arriving = self.tracer.arriving(node)
        texts = [record.text for record in node.call.outputs]
        self.tracer.leave(node, arriving, texts)
        blamed = node.key in self.clear  # for what it computes between the calls inside it
        self.guessed += sum(edge.guessed for edge in node.edges)
        for record in texts:
            status = self.tracer.status(record)
            if status is None:
                continue
            if status.status not in MISALIGNED_STATUSES:
                self.roles[record] = self.tracer.role(node, record, arriving)
            elif blamed:
                self.roles[record] = "introduces"
            elif arriving.failing or arriving.moved is not None:
                self.roles[record] = "inherits"
                self._blame_movement(arriving)
            elif _drifts(status, arriving):
                self.roles[record] = "inherits"
                self.drifting += 1
            elif self._comes_from_around(node):
                self.roles[record] = "inherits"
            else:
                self.roles[record] = "introduces"
                self._suspect(node, status, arriving)

    def ranked(self) -> tuple[Suspect, ...]:
        """Return the suspects, clear ones first, each part in order of the graph.

        One that a collective may have brought its error to comes behind the clear ones of other ranks.
        """
        clear = sorted(self.clear, key=lambda key: (self._from_elsewhere(key), key))
        return (*(self.clear[key] for key in clear), *(self.accumulated[key] for key in sorted(self.accumulated)))

    def _from_elsewhere(self, key: CallKey) -> bool:
        rank, step, _ = key
        others = [other for other in self.clear if other[0] != rank and other[1] <= step] if self.clear[key].changed else []
        return any(not self.clear[other].changed for other in others)

    def _suspect(self, node: CallNode, status: Judged, arriving: Flow) -> None:
        part = self.accumulated if arriving.use > ACCUMULATED else self.clear
        earlier = part.get(node.key)
        if earlier is None or status.ratio > earlier.ratio:
            changed = self.tracer.changed(node)
            why = _why(node, status, arriving, self.tracer, changed)
            part[node.key] = _suspect(node, status, why, use=arriving.use, changed=changed.text if changed else "")

    def _comes_from_around(self, node: CallNode) -> bool:
        """Tell whether the error is that of an input that a module's own code made, and blame that module."""
        found = self.tracer.unrecorded.arriving(node)
        if found is None or found.module is None:
            return False
        if self.tracer.fails_before(found.module, node):
            return True
        statuses = (self.tracer.status(record.text) for record in found.module.call.outputs)
        failing = next((one for one in statuses if one is not None and one.status in MISALIGNED_STATUSES), None)
        if failing is not None:
            why = f"what it computes itself was not recorded, and {found.text} does not agree, though all before that does"
            self.clear.setdefault(found.module.key, _suspect(found.module, failing, why))
        return failing is not None

    def _blame_movement(self, arriving: Flow) -> None:
        if arriving.failing or arriving.moved is None:
            return
        key, text = arriving.moved
        why = "its inputs are equal bit for bit, and it puts the values elsewhere on the target"
        self.clear.setdefault(key, _suspect(self.nodes[key], Judged(record=text, status="not_judged", ratio=1.0), why))


def _drifts(status: Judged, arriving: Flow) -> bool:
    """Tell whether an error from a suspect before fell below its limit in between, and rises above it again here."""
    near = 1.0 < status.ratio < AMPLIFIED  # a ratio below 1 fails for another reason, such as a mask
    return status.status == "fail" and near and arriving.behind and arriving.use > ACCUMULATED


def _suspect(node: CallNode, status: Judged, why: str, *, use: float = 0.0, changed: str = "") -> Suspect:
    call = node.call
    return Suspect(
        record=status.record,
        name=call.name,
        module=call.module,
        operator=call.operator,
        order=call.order,
        ratio=status.ratio,
        why=why,
        site=call.site,
        inputs_use=use,
        changed=changed,
    )


def _why(node: CallNode, status: Judged, arriving: Flow, tracer: Tracer, changed: Change | None) -> str:
    """Say in words why a call is under suspicion."""
    if changed is not None:
        return f"something that is not recorded changed its {changed.text}, so that the error may come from there"
    agree = _inputs_in_words(node, arriving, tracer)
    if not node.call.operator:
        agree += ", nothing recorded inside it fails" if node.inside else ", nothing inside it was recorded"
    differs = {
        "nonfinite": "its output has NaN or Inf where the other side has numbers",
        "shape": "its output has another shape",
        "dtype": "its output has another dtype than the recipe implies",
    }.get(status.status, "its output is not" if agree == _EQUAL else "its output does not")
    doubt = f"; {arriving.unknown} before it could not be compared" if arriving.unknown else ""
    return f"{agree}, {differs}{doubt}"


def _inputs_in_words(node: CallNode, arriving: Flow, tracer: Tracer) -> str:
    return _wrong_in_words(node, arriving, tracer) or _right_in_words(node, arriving, tracer)


def _wrong_in_words(node: CallNode, arriving: Flow, tracer: Tracer) -> str:
    """Say which inputs are known to differ, or may; ``""`` where there is none."""
    unrecorded = tracer.unrecorded
    if (found := unrecorded.arriving(node)) is not None:
        return f"{found.text}, which nothing recorded made, does not agree"
    if index := unrecorded.doubtful(node):
        return f"its input {index}, which nothing recorded made, cannot be compared"
    if arriving.outside and not unrecorded.agree(node):
        return f"its {arriving.outside} differs between the sides before any operator ran"
    return f"its inputs carry the accepted difference of {arriving.accepted}" if arriving.accepted else ""


def _right_in_words(node: CallNode, arriving: Flow, tracer: Tracer) -> str:
    """Say how well the inputs are known to agree."""
    if not node.edges:
        return "it has no inputs"
    if arriving.use > ACCUMULATED:
        return f"its inputs use {arriving.use:.0%} of their limit ({arriving.via}): accumulated"
    if all(tracer.equal_input(edge.record) for edge in node.edges):
        return _EQUAL
    if arriving.unknown:
        return "its inputs may agree"
    return "its inputs agree"


def _earliest(nodes: Mapping[CallKey, CallNode], tracer: Tracer) -> tuple[Suspect, ...]:
    """Return the first failing call, where every failing record seems to inherit."""
    for node in nodes.values():
        for record in node.call.outputs:
            status = tracer.status(record.text)
            if status is not None and status.status in MISALIGNED_STATUSES:
                why = "the first failing record in execution order; what goes into it could not be told apart"
                return (_suspect(node, status, why),)
    return ()


def _unrepeatable(side: str, header: Header) -> list[str]:
    names = [f"{side}: {_name(text)}" for text in header.repeat.different]
    return list(dict.fromkeys(names))


def _name(text: str) -> str:
    """Return ``module / operator`` of an identity's text; the text itself where it is none."""
    try:
        identity = parse_identity(text)
    except ValueError:
        return text
    place = module_text(identity.module, identity.call)
    return f"{place} / {identity.operator}" if identity.operator else place


def _contents(entries: Mapping[str, Entry]) -> frozenset[str]:
    """Return the content ids of a header's entries."""
    return frozenset(entry.content for entry in entries.values())


def _differ_already(reference: Header, target: Header) -> list[str]:
    parts = (("weights", reference.weights, target.weights), ("inputs", reference.inputs, target.inputs))
    return [
        f"the {part} of the two sides differ already"
        for part, one, other in parts
        if one.digest and other.digest and one.digest != other.digest
    ]


def _notes(judged: Sequence[Judged], roles: Mapping[str, str], suspects: Sequence[Suspect], search: _Search) -> list[str]:
    failing = [one.record for one in judged if one.status in MISALIGNED_STATUSES]
    lost = sum(roles[record] == "unknown" for record in failing)
    notes = []
    if len(suspects) > 1:
        notes.append(f"{len(suspects)} calls introduce an error of their own; the first in the graph is shown first")
    if search.accumulated:
        notes.append(f"{len(search.accumulated)} of them start from inputs that already use most of their limit")
    if len(failing) > lost and not search.ranked():
        notes.append("no failing record introduces its error by the graph: the first in execution order is shown")
    if search.drifting:
        notes.append(f"{search.drifting} records fail again by an error that was below its limit in between")
    if lost:
        notes.append(f"{lost} failing records belong to no call that can be read on the reference")
    if search.guessed and suspects:
        notes.append(f"{search.guessed} edges of the graph are missing and were taken from execution order")
    return notes

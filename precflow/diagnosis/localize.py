"""Where two sides part: which calls introduce an error, and which records only inherit one.

A failing record *introduces* an error if nothing that goes into its call fails; otherwise it *inherits* one. For example, with
the status of each call's output beside it::

      pass      fail        fail       (not judged)     fail
    linear -> softmax -> matmul ---------> view ------> linear
                  |
                  +----> dropout -> norm
                           pass     fail

``softmax`` introduces: its input passes. ``matmul`` inherits from it. ``view`` moves values and is not judged, so it hands on
what went into it, and the last ``linear`` inherits too. ``dropout`` passes, so ``norm`` introduces an error of its own, unless
it is just above its limit and ``dropout`` just below: then the error of ``softmax`` only fell below its limit in between
(:func:`_drifts`). The region is the list of calls that introduce, in order of the graph.

One pass over the calls in order of completion is enough, because everything that goes into a call completed before it.
:mod:`precflow.diagnosis.flow` carries along what each output hands on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, INPUT, OPTIMIZER, module_text, parse_identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.collectives import LoneCollective, find_lone
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.flow import Flow, Tracer
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.interval import Interval, find_modules_around, list_names
from precflow.diagnosis.nodes import CallKey, CallNode, key_of
from precflow.diagnosis.unrecorded import TensorChange
from precflow.dumps.collectives import is_collective
from precflow.dumps.dtypes import is_floating
from precflow.dumps.header import Header
from precflow.dumps.protocol import Dump
from precflow.judgement import lines
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged
from precflow.numbers import plural

_AGREE, _EQUAL = "its inputs agree", "its inputs are equal bit for bit"


def localize(
    reference: Dump,
    target: Dump,
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    judge_input: JudgeInput | None = None,
) -> Region:
    """Return where the sides part.

    Suspects are operators where operators were recorded, else modules. Those whose inputs clearly agree come first, in
    order of the graph; those whose inputs already use more than half of their limit (accumulated rounding) follow.

    Args:
        reference: Dump of the side that the graph is taken from.
        target: Dump of the side under test.
        measures: Every measured pair.
        judged: Their statuses.
        judge_input: Judges an input that no recorded call made; without it such an input counts as one that agrees.
    """
    outside = frozenset(entry.content for entry in reference.header.inputs.entries.values())
    nodes = build_graph(reference.calls(), outside=outside)
    worst_last = sorted(judged, key=lambda record: record.status in MISALIGNED_STATUSES)  # of equal identities the worst wins
    statuses = {record.record: record for record in worst_last}
    by_record = {measure.record: measure for measure in measures}
    tracer = Tracer(nodes, target.calls(), by_record, statuses, judge_input)
    search = _SuspectSearch(nodes, tracer, find_lone(reference.calls(), target.calls()))
    for node in nodes.values():
        search.visit(node)
    roles = {record.record: search.roles.get(record.record, "unknown") for record in judged}
    suspects = search.rank() or _find_earliest(nodes, tracer)
    return Region(
        start=suspects[0].name if suspects else "",
        suspects=suspects,
        roles=roles,
        unrepeatable=(*_name_unrepeatable("reference", reference.header), *_name_unrepeatable("target", target.header)),
        notes=(*_describe_starts(reference.header, target.header), *_write_notes(judged, roles, suspects, search)),
    )


class _SuspectSearch:
    """One pass over the nodes; collects roles and suspects.

    Args:
        nodes: The reference's graph.
        tracer: Carries along what each output hands on.
        missing: Collectives that the target does not call.

    Attributes:
        roles: Identity text of a judged record -> its role.
        clear: Suspects whose inputs agree, by call.
        accumulated: Suspects whose inputs already use more than half of their limit, by call.
        drifting: Failing records whose error was below its limit in between.
        guessed: Edges that were taken from execution order.
        ordered: Failing records of the backward pass without a recorded maker, which inherit by execution order alone.
    """

    def __init__(self, nodes: Mapping[CallKey, CallNode], tracer: Tracer, missing: Sequence[LoneCollective] = ()) -> None:
        self.nodes = nodes
        self.tracer = tracer
        # By rank and step: of collectives of gradients, which everything that an optimizer is given may be made of.
        self._missing: dict[tuple[int, int], list[LoneCollective]] = defaultdict(list)
        for lone in missing:
            if lone.parameters:
                self._missing[lone.call.rank, lone.call.step].append(lone)
        self.roles: dict[str, str] = {}
        self.clear: dict[CallKey, Suspect] = {}
        self.accumulated: dict[CallKey, Suspect] = {}
        self.arrivals: dict[CallKey, CallKey] = {}  # backward that was given a wrong tensor -> first gradient that shows it
        self._takers: dict[CallKey, CallKey] = {}  # call of the target alone that is named -> call that was given what it made
        self._given: set[str] = set()  # contents of tensors from outside that were named
        self._failing_steps: dict[int, int] = {}  # rank -> first step with a failing record
        self._records_optimizer = any(node.call.phase == OPTIMIZER for node in nodes.values())
        self.drifting = 0
        self.guessed = 0
        self.ordered = 0

    def visit(self, node: CallNode) -> None:
        """Give every judged output of a call its role."""
        arriving = self.tracer.find_arriving(node)
        texts = [record.text for record in node.call.outputs]
        self.tracer.remember_leaving(node, arriving, texts)
        # A module whose own code was blamed while a call inside it was visited: what is wrong about its output starts here,
        # although a record inside it fails.
        blamed = node.key in self.clear
        self.guessed += sum(edge.guessed for edge in node.edges)
        for record in texts:
            status = self.tracer.status(record)
            if status is None:
                continue
            is_first = node.call.rank not in self._failing_steps
            if status.status in MISALIGNED_STATUSES:
                self._failing_steps.setdefault(node.call.rank, node.call.step)
            # Only a failing record for which nothing else can be blamed introduces its error, so that this is asked last.
            if status.status not in MISALIGNED_STATUSES:
                self.roles[record] = self.tracer.find_role(node, record, arriving)
            elif blamed:
                self.roles[record] = "introduces"
            elif arriving.failing or arriving.moved is not None:
                self.roles[record] = "inherits"
                self._blame_movement(arriving)
            elif _drifts(status, arriving):
                self.roles[record] = "inherits"
                self.drifting += 1
            elif (
                self._was_given_otherwise(node, arriving, is_first=is_first)
                or self._was_trained_otherwise(node)
                or self._lacks_collective(node)
                or self._was_sent(node)
                or self._comes_from_around(node)
                or self._comes_from_inside(node)
                or self._comes_from_between(node, arriving)
                or self._comes_from_outside(node)
            ):
                self.roles[record] = "inherits"
            else:
                self.roles[record] = "introduces"
                self._add_suspect(node, status, arriving)

    def rank(self) -> tuple[Suspect, ...]:
        """Return the suspects, clear ones first, each part in order of the graph.

        A suspect whose error may have come from another rank by a collective comes after the clear ones of other ranks.
        """
        places = {key: place for place, key in enumerate(self.nodes)}  # keys sort by ranks, and nodes in order of the graph
        clear = sorted(self.clear, key=lambda key: (self._may_come_from_another_rank(key), places[key]))
        several = len({rank for rank, _, _ in self.nodes}) > 1
        return tuple(
            replace(part[key], why=f"on rank {key[0]}: {part[key].why}") if several else part[key]
            for part, keys in ((self.clear, clear), (self.accumulated, sorted(self.accumulated, key=places.__getitem__)))
            for key in keys
        )

    def _may_come_from_another_rank(self, key: CallKey) -> bool:
        if not self.clear[key].changed:  # a collective changes its tensors in place, without a record of it
            return False
        rank, step, _ = key
        return any(
            other_rank != rank and other_step <= step and not suspect.changed
            for (other_rank, other_step, _), suspect in self.clear.items()
        )

    def _add_suspect(self, node: CallNode, status: Judged, arriving: Flow) -> None:
        """Suspect a call for its failing output; of several outputs the one furthest over its limit counts."""
        # Behind inputs that are near their limit already, rounding alone may have carried the output over its own.
        part = self.accumulated if arriving.use > lines.ACCUMULATED else self.clear
        earlier = part.get(node.key)
        if earlier is None or status.ratio > earlier.ratio:
            changed = self.tracer.find_change(node)
            why = _explain(node, status, arriving, self.tracer, changed)
            text = changed.text if changed else ""
            given = self.tracer.unrecorded.find_failing(node)
            suspect = replace(
                Suspect.of(node.call, status.record, status.ratio, why),
                inputs_use=arriving.use,
                changed=text,
                outside=self.tracer.find_other_data(node),
                accepted=arriving.accepted,
                weight=self.tracer.find_other_weight(node),
                arrives=given.record.text if given is not None and given.taker is node else "",
            )
            part[node.key] = suspect if changed else self._add_interval(node, suspect)

    def _add_interval(self, node: CallNode, suspect: Suspect) -> Suspect:
        """Return the suspect, of a module with what ran inside it without a partner: the error starts there."""
        record = next((record for record in node.call.outputs if record.text == suspect.record), None)
        interval = self.tracer.inputs.find_inside(node, record) if record is not None and node.inside else None
        if interval is None:
            return suspect
        return _describe_interval(replace(suspect, why=f"{suspect.why}; {interval.text}"), interval)

    def _was_given_otherwise(self, node: CallNode, arriving: Flow, *, is_first: bool) -> bool:
        """Tell whether the error is that of a tensor from outside, such as noise that a loop draws, and name who takes it.

        Behind a call that fails it may be made of what that call returned. The first one is what others inherit from.
        """
        given = arriving.given
        arrived = None if given is None else self.tracer.find_given(node, given)
        if given is None or arrived is None:
            return False
        if given.known and given.known in self._given:
            return True
        taker = self.tracer.unrecorded.find_outside_taker(given)
        if not is_first or taker is None or not taker.call.outputs:
            return False
        self._given.add(given.known)
        why = f"its input {given.index} differs, which no recorded call made, and nothing before it fails"
        suspect = Suspect.of(taker.call, taker.call.outputs[0].text, arrived[1].ratio, why)
        self.clear[taker.key] = replace(suspect, given=given.text, arrives=arrived[0].text)
        return True

    def _was_trained_otherwise(self, node: CallNode) -> bool:
        """Tell whether a weight differs because an earlier step went wrong, and no optimizer was recorded that wrote it."""
        first = self._failing_steps.get(node.call.rank, node.call.step)
        return first < node.call.step and not self._records_optimizer and bool(self.tracer.find_other_weight(node))

    def _lacks_collective(self, node: CallNode) -> bool:
        """Tell whether an optimizer is given another gradient because the target does not reduce all of them, and blame that.

        A gradient that is not reduced is another one. So are all others, if the script clips them by their common norm.
        """
        missing = self._missing.get(node.key[:2], ())
        if node.call.phase != OPTIMIZER or not missing or self.tracer.is_equal_input(node.call.inputs[0]):
            return False
        for lone in missing:
            why = "the target does not call it, and until there everything agrees"
            record = lone.call.outputs[0].text if lone.call.outputs else ""
            self.clear.setdefault(key_of(lone.call), Suspect.of(lone.call, record, 1.0, why))
        return True

    def _was_sent(self, node: CallNode) -> bool:
        """Tell whether a rank gave a collective something wrong that no recorded call made, such as a bucket of gradients."""
        return is_collective(node.call) and self.tracer.unrecorded.find_failing(node) is not None

    def _comes_from_around(self, node: CallNode) -> bool:
        """Tell whether the error is that of an input that a module's own code made, and blame that module."""
        unrecorded = self.tracer.unrecorded.find_failing(node)
        if unrecorded is None:
            return False
        module = unrecorded.module
        if module is None:
            return self._comes_from_earlier(node) or self._is_known_arrival(node, unrecorded.taker)
        if self.tracer.fails_before(module, node):
            return True
        given = self.tracer.unrecorded.find_own(module) if module.call.phase == BACKWARD else None
        for record in module.call.outputs:
            status = self.tracer.status(record.text)
            if status is not None and status.status in MISALIGNED_STATUSES:
                text = unrecorded.text
                why = f"what it computes itself was not recorded, and {text} does not agree, though all before that does"
                if given is not None:  # what arrives at it differs already: the loss made it, or the code around the module
                    unrecorded, why = given, f"{given.text}, which nothing recorded made, does not agree"
                suspect = Suspect.of(module.call, status.record, status.ratio, why)
                self.clear.setdefault(module.key, replace(suspect, arrives=unrecorded.record.text))
                return True
        # Nothing shows that the module's own code went wrong.
        return self._comes_from_earlier(node) or self._is_known_arrival(node, unrecorded.taker)

    def _comes_from_earlier(self, node: CallNode) -> bool:
        """Tell whether a wrong tensor of the backward pass may come from a call that failed before it.

        No recorded call made the tensor, so only execution order is left to tell. A call whose own input is wrong is innocent
        of that in any case; with no failure before it, it stays as the first place where the error is seen.
        """
        earlier = node.call.phase in {BACKWARD, GRADIENT} and self.tracer.fails_earlier(node)
        self.ordered += earlier
        return earlier

    def _comes_from_outside(self, node: CallNode) -> bool:
        """Tell whether a wrong tensor may come from a call of the forward that failed before it.

        It was made outside of all recorded modules, as other tools do not record the model as a whole. Whole numbers are data.
        """
        given = self.tracer.unrecorded.find_failing(node) if node.call.phase in {FORWARD, BACKWARD} else None
        if given is None or given.module is not None or not is_floating(given.record.dtype):
            return False
        earlier = self.tracer.fails_in_forward(node)
        self.ordered += earlier
        return earlier

    def _comes_from_inside(self, node: CallNode) -> bool:
        """Tell whether a parameter's gradient may come from a call that failed inside the module that holds the parameter.

        The root of a vision transformer adds ``positions`` itself, before its blocks. Their gradient passes through all the
        blocks, and no record tells: what arrives at the root's backward agrees.
        """
        made = {id(record) for record in node.call.outputs}
        if node.call.phase != GRADIENT or any(edge.source is not None and id(edge.record) in made for edge in node.edges):
            return False
        inside = self.tracer.fails_earlier(node, inside=node.call.module)
        self.ordered += inside
        return inside

    def _is_known_arrival(self, node: CallNode, taker: CallNode) -> bool:
        """Tell whether another gradient was named already for the same wrong tensor that arrived at a module's backward."""
        return node.call.phase == GRADIENT and self.arrivals.setdefault(taker.key, node.key) != node.key

    def _comes_from_between(self, node: CallNode, arriving: Flow) -> bool:
        """Tell whether an input of a call differs itself although all before it agrees, and blame what lies in between."""
        if self.tracer.find_change(node) is not None:  # a tensor that changed on its way is named by itself
            return False
        interval = self.tracer.inputs.find_interval(node)
        if interval is None or interval.is_empty:
            return False
        if (
            arriving.use > lines.ACCUMULATED and interval.ratio < lines.AMPLIFIED
        ):  # no more than the accumulated rounding of its makers
            return False
        # A projection that the target leaves out is named by its module, whose output fails: what takes it adds nothing.
        between = {source.key for source in interval.reference}
        named = [self.nodes[key].inside for key, suspect in self.clear.items() if suspect.between_reference]
        if between and any(between.issubset(inside) for inside in named):
            return True
        blamed, suspect = self._choose_in_between(interval)
        # The order of a call that only the target makes is that of another call of the reference: it goes by its taker.
        is_own = self.nodes.get(blamed.key) is blamed
        self.clear.setdefault(blamed.key if is_own else self._takers.setdefault(blamed.key, node.key), suspect)
        return True

    def _choose_in_between(self, interval: Interval) -> tuple[CallNode, Suspect]:
        """Return whom to name for an interval: the module around it if that fails, else a call in it."""
        moved = self.tracer.inputs.find_wrong_movement(interval)
        if moved is not None:
            why = f"its inputs agree, and {interval.end} does not: it puts the values elsewhere on the target"
            return moved, Suspect.of(moved.call, moved.call.outputs[0].text, interval.ratio, why)
        for module in find_modules_around(interval, self.nodes):
            known = [status for record in module.call.outputs if (status := self.tracer.status(record.text)) is not None]
            failing = [status for status in known if status.status in MISALIGNED_STATUSES]
            if failing:
                worst = max(failing, key=lambda status: status.ratio)
                return module, _make_interval_suspect(module, worst.record, worst.ratio, interval.within(module))
        node = (interval.reference or interval.target)[-1]
        return node, _make_interval_suspect(node, node.call.outputs[0].text, interval.ratio, interval)

    def _blame_movement(self, arriving: Flow) -> None:
        """Suspect the movement that changed values; it is not judged itself, so only what comes after it fails."""
        if arriving.failing or arriving.moved is None:
            return
        key, text = arriving.moved
        why = "its inputs are equal bit for bit, and it puts the values elsewhere on the target"
        self.clear.setdefault(key, Suspect.of(self.nodes[key].call, text, 1.0, why))


def _drifts(status: Judged, arriving: Flow) -> bool:
    """Tell whether the error of an earlier suspect fell below its limit in between, and only rises above it again here.

    Example: softmax fails at 8 times its limit, the projection after it passes at 0.9, the next call fails at 1.1.
    """
    near = 1.0 < status.ratio < lines.AMPLIFIED  # a ratio below 1 fails for another reason, such as a mask
    return status.status == "fail" and near and arriving.behind and arriving.use > lines.ACCUMULATED


def _make_interval_suspect(node: CallNode, record: str, ratio: float, interval: Interval) -> Suspect:
    return _describe_interval(Suspect.of(node.call, record, ratio, interval.text), interval)


def _describe_interval(suspect: Suspect, interval: Interval) -> Suspect:
    """Return a suspect with what lies in between; where that is on one side alone, with the line of the last such call."""
    sides = [nodes for nodes in (interval.reference, interval.target) if nodes]
    return replace(
        suspect,
        site=sides[0][-1].call.site if len(sides) == 1 else suspect.site,
        after=interval.after,
        between_reference=list_names(interval.reference),
        between_target=list_names(interval.target),
        arrives=interval.record.text if interval.record.whose.role == INPUT else "",
    )


def _explain(node: CallNode, status: Judged, arriving: Flow, tracer: Tracer, changed: TensorChange | None) -> str:
    """Say why a call is under suspicion."""
    if changed is not None:
        return f"something that is not recorded changed its {changed.text}, so that the error may come from there"
    agree = _describe_wrong_inputs(node, arriving, tracer) or _describe_right_inputs(node, arriving, tracer)
    if not node.call.operator:
        agree += ", nothing recorded inside it fails" if node.inside else ", nothing inside it was recorded"
    short = {_AGREE: "its output does not", _EQUAL: "its output is not"}
    differs = {
        "nonfinite": "its output has NaN or Inf where the other side has numbers",
        "shape": "its output has another shape",
        "dtype": "its output has another dtype than the recipe implies",
    }.get(status.status, short.get(agree, "and its output does not agree"))
    doubt = f"; {arriving.unknown} before it could not be compared" if arriving.unknown else ""
    return f"{agree}, {differs}{doubt}"


def _describe_wrong_inputs(node: CallNode, arriving: Flow, tracer: Tracer) -> str:
    """Say which inputs differ or may differ; ``""`` if none does."""
    unrecorded = tracer.unrecorded
    if (failing := unrecorded.find_failing(node)) is not None:
        return f"{failing.text}, which nothing recorded made, does not agree"
    if index := unrecorded.find_undecided(node):
        return f"its input {index}, which nothing recorded made, cannot be compared"
    if arriving.outside and not unrecorded.all_agree(node):
        return f"its {arriving.outside} differs between the sides before any operator ran"
    return f"its inputs already differ because of the accepted difference at {arriving.accepted}" if arriving.accepted else ""


def _describe_right_inputs(node: CallNode, arriving: Flow, tracer: Tracer) -> str:
    """Say how well the inputs are known to agree."""
    if not node.edges:
        return "it has no inputs"
    if arriving.use > lines.ACCUMULATED:
        return f"its inputs use {arriving.use:.0%} of their limit ({arriving.via}): accumulated"
    if all(tracer.is_equal_input(edge.record) for edge in node.edges):
        return _EQUAL
    if arriving.unknown or not tracer.inputs.all_agree(node):
        return "its inputs may agree"
    return _AGREE


def _find_earliest(nodes: Mapping[CallKey, CallNode], tracer: Tracer) -> tuple[Suspect, ...]:
    """Return the first failing call in execution order, for the case that every failing record seems to inherit."""
    for node in nodes.values():
        for record in node.call.outputs:
            status = tracer.status(record.text)
            if status is not None and status.status in MISALIGNED_STATUSES:
                why = "the first failing record in execution order; what goes into it could not be told apart"
                return (Suspect.of(node.call, status.record, status.ratio, why),)
    return ()


def _name_unrepeatable(side: str, header: Header) -> list[str]:
    """Return ``side: module / operator`` of the records of a side that changed between two equal runs."""
    return list(dict.fromkeys(f"{side}: {_name_call(text)}" for text in header.repeat.different))


def _name_call(text: str) -> str:
    """Return ``module / operator`` of an identity's text; the text itself if it is not an identity."""
    try:
        identity = parse_identity(text)
    except ValueError:
        return text
    module = module_text(identity.module, identity.call)
    return f"{module} / {identity.operator}" if identity.operator else module


def _describe_starts(reference: Header, target: Header) -> list[str]:
    """Say that the two sides did not start from the same weights or inputs."""
    parts = (("weights", reference.weights, target.weights), ("inputs", reference.inputs, target.inputs))
    return [
        f"the {part} of the two sides differ already"
        for part, here, there in parts
        if here.digest and there.digest and here.digest != there.digest
    ]


def _write_notes(
    judged: Sequence[Judged], roles: Mapping[str, str], suspects: Sequence[Suspect], search: _SuspectSearch
) -> list[str]:
    failing = [record.record for record in judged if record.status in MISALIGNED_STATUSES]
    lost = sum(roles[record] == "unknown" for record in failing)
    notes = []
    if len(suspects) > 1:
        notes.append(f"{len(suspects)} calls introduce an error of their own; the first in the graph is shown first")
    if search.accumulated:
        notes.append(f"{len(search.accumulated)} of them start from inputs that already use most of their limit")
    if len(failing) > lost and not search.rank():
        notes.append("no failing record introduces its error by the graph: the first in execution order is shown")
    if search.drifting:
        notes.append(
            f"{plural(search.drifting, 'record fails', 'records fail')} again by an error that was below its limit in between"
        )
    if search.ordered:
        notes.append(
            f"{plural(search.ordered, 'failing record')}: unknown which call made {'it' if search.ordered == 1 else 'them'};"
            " what failed before in the same pass counts as the cause"
        )
    if lost:
        notes.append(f"{lost} failing records belong to no call that can be read on the reference")
    if search.guessed and suspects:
        notes.append(
            f"{plural(search.guessed, 'link')} between calls {'was' if search.guessed == 1 else 'were'} guessed from call order"
        )
    return notes

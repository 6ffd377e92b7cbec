"""Where an error starts if what makes it has no partner: between the last records that agree and the first that does not.

The two sides may run different operators. Then nobody can say which of them is wrong, only between which two records the error
arises. Eager against fused attention, for example::

    reference   linear -> matmul -> softmax -> matmul -> linear
    target      linear -> scaled_dot_product_attention -> linear
                agrees                                   fails

The last ``linear`` fails, and no failing record goes into it, because nothing between the two has a partner. It is innocent all
the same: what it is *given* differs already. So the input tensors of a suspect are compared themselves before anybody says that
they agree (:class:`OwnInputs`). If one differs, the way back to the last records that agree is followed on both sides, along
the graph of each (:class:`Interval`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from precflow.agent.contract import BACKWARD, GRADIENT, OUTPUT, Identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.nodes import CallKey, CallNode, OutputKey, list_read_inputs
from precflow.dumps.dtypes import FLOATS
from precflow.dumps.records import Call, Record
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged

_NAMED = 5  # calls that a sentence names
_AGREES = frozenset({"pass", "blind", "accepted"})
_ALONE = frozenset({"unpaired_reference", "unpaired_target", "covered"})


@dataclass(frozen=True)
class Interval:
    """What lies between the last records that agree and an input that does not.

    Attributes:
        record: The input, of the reference.
        ratio: How far over its limit it is.
        taker: The call that takes it: the first that shows the error, and innocent.
        after: Calls whose records agree, and which the input is made of.
        reference: Calls of the reference in between, in order: those without a partner; data movement if there are none.
        target: The same on the target.
    """

    record: Record
    ratio: float
    taker: CallNode
    after: tuple[str, ...]
    reference: tuple[CallNode, ...]
    target: tuple[CallNode, ...]

    def within(self, module: CallNode) -> Interval:
        """Return the interval with only those calls in between that ran inside a module, if there are any on a side."""
        name = module.call.module
        reference, target = (
            tuple(node for node in nodes if not name or f"{node.call.module}.".startswith(f"{name}.")) or nodes
            for nodes in (self.reference, self.target)
        )
        return replace(self, reference=reference, target=target)

    @property
    def is_empty(self) -> bool:
        """Nothing lies in between: the call takes this input from elsewhere than the other side's."""
        return not (self.reference or self.target)

    @property
    def end(self) -> str:
        """The input, or the output of a module, that does not agree, in words."""
        if self.record.whose.role == OUTPUT:
            return f"output {self.record.index} of {self.taker.call.name}"
        own = any(record.identity == self.record.identity for record in self.taker.call.inputs)
        return f"input {self.record.index} of {self.taker.call.name}" if own else f"what arrives at {self.taker.call.name}"

    @property
    def text(self) -> str:
        """The interval in words."""
        start = f"between {_list_some(self.after)}, which agrees, and " if len(self.after) == 1 else ""
        start = start or (f"between {_list_some(self.after)}, which agree, and " if self.after else "before ")
        sides = (("reference", self.reference), ("target", self.target))
        parts = [f"on the {side} {_list_some(list_names(nodes))}" for side, nodes in sides if nodes]
        alone = f"; in between: {', '.join(parts)}" if parts else ""
        return f"the error starts {start}{self.end}, which does not{alone}"


class OwnInputs:
    """Compares the input tensors of calls, and finds out what lies before one that differs.

    Args:
        nodes: The reference's graph.
        target: Calls of the target.
        records: Every record of the target, by identity.
        measures: Identity text -> measure.
        judged: Identity text -> status.
        judge_input: Judges an input; ``None`` if only content ids were kept: then nothing is found.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what is known of the two sides
        self,
        nodes: Mapping[CallKey, CallNode],
        target: Sequence[Call],
        records: Mapping[Identity, Record],
        measures: Mapping[str, Measure],
        judged: Mapping[str, Judged],
        judge_input: JudgeInput | None,
    ) -> None:
        self._nodes = nodes
        self._target_calls = target
        self._records = records
        self._measures = measures
        self._judged = judged
        self._judge_input = judge_input
        self._known: dict[str, Judged] = {}  # by identity text: an input is read and judged once

    def find_interval(self, node: CallNode) -> Interval | None:
        """Return where the error of a call starts if one of its own inputs is over its limit; ``None`` if none is."""
        for record, sources in self._list_inputs(node):
            judged = self._find_status(record, sources)
            edges = self._find_target_edges(record)
            if judged.status in MISALIGNED_STATUSES or self._is_chosen_alone(record, sources, edges):
                after: list[CallNode] = []
                here = self._walk_back(self._nodes, sources, after)
                there = self._walk_back(self._target_nodes, edges, [])
                # A call that one side alone makes explains the difference; movement that both sides make does not, and what
                # both sides make and nobody could compare is no way in which they differ.
                alone = [tuple(filter(self._is_alone, nodes)) for nodes in (here, there)]
                here, there = alone if any(alone) else map(self._leave_out_unknown, (here, there))
                return Interval(record, max(judged.ratio, 1.0), node, _name_calls(after), here, there)
        return None

    def _leave_out_unknown(self, nodes: Sequence[CallNode]) -> tuple[CallNode, ...]:
        """Return the calls but those that nobody could compare."""
        return tuple(node for node in nodes if not self._has_status(node, INCOMPLETE_STATUSES))

    def is_computed_elsewhere(self, record: Record) -> bool:
        """Tell whether an input of the target was computed by a call that did not make it on the reference."""
        keys = self._find_target_edges(record)
        makers = [(self._target_nodes[key].call, index) for key, index in keys]
        made = {output.identity for call, index in makers for output in call.outputs if output.index == index}
        edges = [edge for node in self._nodes.values() for edge in node.edges if edge.record is record]
        own = {
            output.identity
            for edge in edges
            if edge.source is not None
            for output in self._nodes[edge.source[0]].call.outputs
            if output.index == edge.source[1]
        }
        return bool(made) and not made & own and not any(call.movement for call, _ in makers)

    def _is_chosen_alone(self, record: Record, sources: Sequence[OutputKey], edges: Sequence[OutputKey]) -> bool:
        """Tell whether an input of whole or truth values differs, and a call made it on one side that the other does not make.

        Such values are not judged by a limit: a router that drops tokens takes another mask, and what reads it is innocent.
        """
        other = self._records.get(record.identity)
        if other is None or {record.dtype, other.dtype} & {*FLOATS} or not (record.content and other.content):
            return False
        makers = (*(self._nodes[key] for key, _ in sources), *(self._target_nodes[key] for key, _ in edges))
        return record.content != other.content and any(map(self._is_alone, makers))

    def find_inside(self, module: CallNode, record: Record) -> Interval | None:
        """Return what lies before a module's output if calls without a partner ran inside it; ``None`` if none did.

        Args:
            module: A call of the reference's module.
            record: The output, which does not agree although the module's inputs do, and nothing inside it fails.
        """
        here = [self._nodes[key] for key in module.inside]
        there = self._find_inside_on_target(module)
        alone = [tuple(node for node in nodes if self._has_status(node, _ALONE)) for nodes in (here, there)]
        if not any(alone):
            return None
        inside, after = set(module.inside), list[CallNode]()
        self._walk_back(
            self._nodes, [edge.source for node in alone[0] for edge in node.edges if edge.source is not None], after
        )
        return Interval(record, 1.0, module, _name_calls([node for node in after if node.key in inside]), alone[0], alone[1])

    def _find_inside_on_target(self, module: CallNode) -> list[CallNode]:
        call = module.call
        same = (call.module, call.call, "", call.phase, call.step, call.rank)
        for node in self._target_nodes.values():
            other = node.call
            if (other.module, other.call, other.operator, other.phase, other.step, other.rank) == same:
                return [self._target_nodes[key] for key in node.inside]
        return []

    def find_wrong_movement(self, interval: Interval) -> CallNode | None:
        """Return the data movement in an interval whose inputs agree, so that it is the one that changed values.

        ``None`` where a call lies in between that one side alone makes: what changed the values is that call first of all.
        """
        if any(map(self._is_alone, (*interval.reference, *interval.target))):
            return None
        for node in reversed(interval.reference):  # the last one first: what is before it may be right
            if node.call.movement and self.find_interval(node) is None:
                return node
        return None

    def all_agree(self, node: CallNode) -> bool:
        """Tell whether every input of a call was compared, or is made of one that was, and keeps its limits."""
        statuses = {self._find_status(record, sources).status for record, sources in self._list_inputs(node)}
        return statuses <= _AGREES | {"not_judged"}

    def _list_inputs(self, node: CallNode) -> Iterator[tuple[Record, Sequence[OutputKey]]]:
        """Yield the inputs of a call that are no weights, each with the outputs that it comes from.

        A parameter's gradient has no inputs in the dump: it is made of what arrives at the backward of its module.
        """
        call = node.call
        sources: dict[int, list[OutputKey]] = {}
        for edge in node.edges:
            if edge.source is not None and not edge.guessed:
                sources.setdefault(id(edge.record), []).append(edge.source)
        if call.phase == GRADIENT:
            backward = self._backwards.get((call.rank, call.step, call.module), ())
            given = [(other, record) for other in backward for record in other.call.inputs]
            for other, record in given:
                yield record, [edge.source for edge in other.edges if edge.record is record and edge.source is not None]
            return
        for record in list_read_inputs(call):
            if not record.weight:
                yield record, sources.get(id(record), ())

    def _find_status(self, record: Record, sources: Sequence[OutputKey]) -> Judged:
        """Return the status of an input: ``pass`` for equal bits, its maker's if it is the very tensor that was judged."""
        other = self._records.get(record.identity)
        if other is None:
            return Judged(record.text, "unreadable")
        if record.content and record.content == other.content:
            return Judged(record.text, "pass")
        for key, index in sources:
            maker = next((output for output in self._nodes[key].call.outputs if output.index == index), None)
            there = None if maker is None else self._records.get(maker.identity)
            is_same = maker is not None and there is not None and record.known and record.known == maker.known
            if maker is not None and is_same and there is not None and other.known == there.known:
                known = self._judged.get(maker.text)
                if known is not None and known.status not in {"not_judged", *_ALONE}:
                    return known
        if self._judge_input is None:
            return Judged(record.text, "undecided")
        text = record.text
        if text not in self._known:
            self._known[text] = self._judge_input(record, other)
        return self._known[text]

    def _walk_back(
        self, nodes: Mapping[CallKey, CallNode], sources: Sequence[OutputKey], after: list[CallNode]
    ) -> tuple[CallNode, ...]:
        """Return the calls before an input, back to those whose records agree, which are put into ``after``."""
        between: dict[CallKey, CallNode] = {}
        waiting = [key for key, _ in sources]
        while waiting:
            key = waiting.pop()
            node = nodes.get(key)
            if node is None or key in between:  # two paths may lead back to one call
                continue
            if self._was_compared(node):
                after.append(node)
                continue
            between[key] = node
            waiting += [edge.source[0] for edge in node.edges if edge.source is not None and not edge.guessed]
        return tuple(between[key] for key in sorted(between))

    def _is_alone(self, node: CallNode) -> bool:
        """Tell whether the other side makes no such call; movement is not judged, so that its status does not say it."""
        if self._has_status(node, _ALONE):
            return True
        outputs = [record.identity for record in node.call.outputs]
        known = [identity in self._records and identity in self._references for identity in outputs]
        return bool(outputs) and not any(known)

    def _was_compared(self, node: CallNode) -> bool:
        texts = [record.text for record in node.call.outputs]
        measures = [self._measures.get(text) for text in texts]
        if measures and all(measure is not None and measure.equal for measure in measures):
            return True
        return self._has_status(node, _AGREES | MISALIGNED_STATUSES)

    def _has_status(self, node: CallNode, statuses: frozenset[str]) -> bool:
        known = (self._judged.get(record.text) for record in node.call.outputs)
        return any(judged is not None and judged.status in statuses for judged in known)

    @functools.cached_property
    def _target_nodes(self) -> Mapping[CallKey, CallNode]:
        """The target's own graph; made at the first input that differs, because most runs have none."""
        return build_graph(self._target_calls)

    @functools.cached_property
    def _references(self) -> frozenset[Identity]:
        """Every output of the reference."""
        return frozenset(record.identity for node in self._nodes.values() for record in node.call.outputs)

    def _find_target_edges(self, record: Record) -> Sequence[OutputKey]:
        """Return what made the target's input of the same identity."""
        other = self._records.get(record.identity)
        return () if other is None else self._target_edges.get(id(other), ())

    @functools.cached_property
    def _target_edges(self) -> Mapping[int, Sequence[OutputKey]]:
        """``id`` of the target's record of an identity -> what the inputs of this identity were made by."""
        edges: dict[int, tuple[OutputKey, ...]] = {}
        for node in self._target_nodes.values():
            for edge in node.edges:
                if edge.source is not None and not edge.guessed:
                    taken = id(self._records[edge.record.identity])
                    edges[taken] = (*edges.get(taken, ()), edge.source)
        return edges

    @functools.cached_property
    def _backwards(self) -> Mapping[tuple[int, int, str], Sequence[CallNode]]:
        """The backwards of each module, by rank, step and module."""
        backwards: dict[tuple[int, int, str], list[CallNode]] = {}
        for node in self._nodes.values():
            if node.call.phase == BACKWARD and not node.call.operator:
                backwards.setdefault((node.call.rank, node.call.step, node.call.module), []).append(node)
        return backwards


def find_modules_around(interval: Interval, nodes: Mapping[CallKey, CallNode]) -> Iterator[CallNode]:
    """Yield the module calls of the reference around the last calls of an interval, innermost first.

    Only the last call of each side counts: what lies before it may be far away, such as a mask made once for all layers.
    """
    last = [side[-1] for side in (interval.reference, interval.target) if side]
    paths = [node.call.module.split(".") for node in last]
    shared = 0
    while paths and all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    taker, first = interval.taker, interval.reference[-1].key if interval.reference else interval.taker.key
    for length in range(shared, -1, -1):
        name = ".".join(paths[0][:length]) if paths else ""
        for node in nodes.values():
            call = node.call
            is_module = not call.operator and call.module == name and call.phase == taker.call.phase
            # A module completes after everything inside it; the first call of it that does is the one around.
            if is_module and node.key[:2] == taker.key[:2] and node.key > first:
                yield node
                break


def _name_calls(nodes: Sequence[CallNode]) -> tuple[str, ...]:
    """Return the names of calls, each once and in order; data movement only if there is nothing else."""
    ordered = sorted(nodes, key=lambda node: node.key)
    computing = [node for node in ordered if not node.call.movement]
    return list_names(computing or ordered)


def list_names(nodes: Sequence[CallNode]) -> tuple[str, ...]:
    """Return the names of calls, each once, in their order."""
    return tuple(dict.fromkeys(node.call.name for node in nodes))


def _list_some(names: Sequence[str]) -> str:
    """Return names as a list in words, at most five of them.

    >>> _list_some(["a", "b"]), _list_some([str(number) for number in range(7)])
    ('a, b', '0, 1, 2, 3, 4 and 2 more')
    """
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")

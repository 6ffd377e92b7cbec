"""The data-flow graph of one side: which call's output went into which call, and which calls a module made.

Edges come from the ``source`` that the agent recorded. If it is missing, because an operator in between was not recorded, an
earlier output with the same content is taken. If there is none either, the latest earlier output of the same shape is taken as
a guess: most often the call before made the input.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, OUTSIDE, ROOT_MODULE
from precflow.diagnosis.collectives import find_givers, order_across_ranks
from precflow.diagnosis.nodes import CallKey, CallNode, Edge, OutputKey, key_of, list_read_inputs
from precflow.diagnosis.phase_edges import PhaseEdges
from precflow.dumps.records import Call, Record

_NESTED = frozenset({FORWARD, BACKWARD})  # phases in which a module's call is around those of its children


@dataclass
class _SeenOutputs:
    """The outputs so far of each rank, by everything that an input without a recorded source can be recognised by."""

    outputs: dict[OutputKey, OutputKey] = field(default_factory=dict)  # to itself, so that all edges share it
    by_content: dict[tuple[int, str], list[OutputKey]] = field(default_factory=lambda: defaultdict(list))
    by_shape: dict[tuple[int, str, tuple[int, ...]], list[OutputKey]] = field(default_factory=lambda: defaultdict(list))
    of_step: dict[tuple[int, str], OutputKey] = field(default_factory=dict)  # step and content -> the last one of any rank

    def add(self, key: CallKey, call: Call) -> None:
        """Remember the outputs of a call."""
        for record in call.outputs:
            output = (key, record.index)
            self.outputs[output] = output
            self.by_shape[call.rank, call.phase, record.shape].append(output)
            if record.known and math.prod(record.shape) > 1:  # single numbers are often equal by chance
                self.by_content[call.rank, record.known].append(output)
                if record.content:  # marks of two ranks are not compared
                    self.of_step[call.step, record.content] = output


def build_graph(calls: Iterable[Call], *, outside: frozenset[str] = frozenset()) -> dict[CallKey, CallNode]:
    """Return every call as a node, in order of completion; a collective comes after what the other ranks gave it is made.

    Args:
        calls: Calls of one dump, of any steps and ranks.
        outside: Content ids of the workload's own inputs: no edge is guessed for them.
    """
    ordered = sorted(((key_of(call), call) for call in calls), key=lambda pair: pair[0])
    inside = _find_inside(ordered)
    seen = _SeenOutputs()
    givers = find_givers(call for _, call in ordered)
    nodes: dict[CallKey, CallNode] = {}
    phases = PhaseEdges(nodes, (call for _, call in ordered))
    for key, call in order_across_ranks(ordered, givers) if givers else ordered:
        children = inside.get(key, ())
        # A module is given its inputs before its first child runs, although its record comes after those of its children.
        start = children[0] if children else key
        edges: list[Edge] = []
        for giver in givers.get(key, (call,)):
            edges += _find_edges(giver, start if giver is call else key_of(giver), seen, outside, phases)
        edges += phases.edges(call)
        backward = phases.find_unfinished_backward(call)
        if backward is not None:  # the gradient depends on whatever that backward was given
            edges += [*_find_edges(backward, start, seen, outside, phases), *phases.edges(backward)]
        nodes[key] = CallNode(key, call, tuple(edges), children)
        seen.add(key, call)
        phases.note(key, call)
    return nodes


def _find_inside(ordered: list[tuple[CallKey, Call]]) -> Mapping[CallKey, tuple[CallKey, ...]]:
    """Return, for each module call, the calls that it and its children made in its phase since the module's last call.

    A call that completes is kept waiting for every module around it; the next call of such a module to complete takes it.
    """
    waiting: dict[tuple[int, int, str], dict[str, list[CallKey]]] = defaultdict(lambda: defaultdict(list))
    inside: dict[CallKey, tuple[CallKey, ...]] = {}
    outer: dict[str, str] = {}
    for key, call in ordered:
        if call.phase not in _NESTED:
            continue
        by_module = waiting[call.rank, call.step, call.phase]
        if not call.operator:
            inside[key] = tuple(by_module.pop(call.module, ()))
        for module in _list_enclosing(call, outer):
            by_module[module].append(key)
    return inside


def _list_enclosing(call: Call, outer: dict[str, str]) -> Iterator[str]:
    """Yield the modules that were running around a call, innermost first.

    Args:
        call: The call.
        outer: Module -> the one around it, filled in here. It hands out the same text objects, whose hashes are known already.

    >>> from types import SimpleNamespace as Stub
    >>> list(_list_enclosing(Stub(module="layers.0", operator="add"), {}))
    ['layers.0', 'layers', '']
    """
    module = call.module
    if module == OUTSIDE:
        return
    if call.operator:
        yield module
    while module != ROOT_MODULE:
        around = outer.get(module)
        if around is None:
            around = outer[module] = module.rpartition(".")[0]
        module = around
        yield module


def _find_edges(call: Call, start: CallKey, seen: _SeenOutputs, outside: frozenset[str], phases: PhaseEdges) -> Iterator[Edge]:
    """Yield the edges of a call's inputs.

    An input that no recorded call made has an edge without a source: in the forward it may come from outside. A guess from
    execution order is made only if nothing else is known about any input of the call: a wrong edge would blame the wrong
    call.
    """
    # A gradient's record is what arrived at the parameter.
    given = call.outputs if call.phase == GRADIENT else list_read_inputs(call)
    sources = [_find_source(record, start, seen) for record in given]
    any_known = any(source is not None for source in sources)
    for record, source in zip(given, sources, strict=True):
        from_outside = bool(record.content) and record.content in outside
        if record.weight:
            yield Edge(record, source or phases.find_weight(call, record))
        elif source is not None or (call.phase in _NESTED and (any_known or from_outside)):
            yield Edge(record, source)
        elif call.phase in _NESTED:
            guess = _find_latest(seen.by_shape.get((call.rank, call.phase, record.shape), []), start)
            yield Edge(record, guess, guessed=guess is not None)


def _find_source(record: Record, start: CallKey, seen: _SeenOutputs) -> OutputKey | None:
    """Return the output that an input was recorded to come from, else the latest one with the same content.

    Of another rank if this one has none: a stage of a pipeline receives its input before its step begins, and so unrecorded.
    """
    if record.source is not None:
        rank, step, _ = start
        order, index = record.source
        output = seen.outputs.get(((rank, step, order), index))
        if output is not None and output[0] < start:
            return output
    if record.weight:
        return None
    own = _find_latest(seen.by_content.get((start[0], record.known), []), start)
    other = seen.of_step.get((start[1], record.content)) if own is None and record.content else None
    return other if other is not None and other[0][0] != start[0] else own


def _find_latest(outputs: list[OutputKey], start: CallKey) -> OutputKey | None:
    """Return the last of some sorted outputs before ``start`` in the same rank and step."""
    position = bisect.bisect_left(outputs, (start, ""))  # "" sorts before the index of every output of `start` itself
    if not position:
        return None
    key, index = outputs[position - 1]
    return (key, index) if key[:2] == start[:2] else None

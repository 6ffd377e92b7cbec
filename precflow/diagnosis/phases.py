"""What the phases of training depend on beside their inputs: forward, weights and gradients that came before.

Backward uses what its forward kept; a gradient is made of what arrived at its module; the optimizer makes the next step's
weights. Without these edges everything after the first difference would seem to start anew in every phase and every step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Protocol

from precflow.agent.contract import ROOT_MODULE
from precflow.diagnosis.edges import Edge, Key, Place, key_of
from precflow.dumps.records import Call, Record

Source = tuple[Record, Place]
_Weights = dict[tuple[int, str], dict[tuple[str, str], list[Source]]]


class Node(Protocol):
    """What is needed of a call that is in the graph already."""

    @property
    def call(self) -> Call:
        """The call."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Its own edges."""


class Phases:
    """Remembers what later phases depend on; calls come in order of completion.

    Args:
        nodes: The graph so far.
    """

    def __init__(self, nodes: Mapping[Key, Node]) -> None:
        self._nodes = nodes
        self._forward: dict[tuple[int, int, str, int], Key] = {}  # rank, step, module and call -> the module's own forward
        self._end: dict[tuple[int, int], Key] = {}  # rank and step -> the last call of the forward
        self._backward: dict[tuple[int, int, str], Key] = {}  # rank, step and module -> its last backward
        self._gradients: dict[tuple[int, int, str, str], Source] = {}  # rank, step, module and parameter -> its gradient
        self._weights: _Weights = defaultdict(dict)  # rank and module -> weight and phase -> what was last made of it

    def note(self, call: Call) -> None:
        """Remember a call that is in the graph now."""
        key = key_of(call)
        if call.phase == "forward":
            self._end[key[:2]] = key
            if not call.operator:
                self._forward[(*key[:2], call.module, call.call)] = key
        elif call.phase == "backward" and not call.operator:
            self._backward[(*key[:2], call.module)] = key
        elif call.phase in {"gradient", "optimizer"} and call.outputs:
            name = call.outputs[0].identity.index
            sources = [(record, (key, record.identity.index)) for record in call.outputs]
            self._weights[call.rank, call.module][name, call.phase] = sources
            if call.phase == "gradient":
                self._gradients[(*key[:2], call.module, name)] = sources[0]

    def weight(self, call: Call, record: Record) -> Place | None:
        """Return what made a weight in an earlier step."""
        module, _, name = record.weight.rpartition(".")
        made = self._weights.get((call.rank, module), {}).get((name, "optimizer"), ())
        return next((place for _, place in made if place[0] < (call.rank, call.step, 0)), None)

    def edges(self, call: Call) -> Iterator[Edge]:
        """Yield the edges of a call beside those of its inputs."""
        if call.phase == "forward":
            yield from () if call.operator else self._own_weights(call)
        elif call.phase == "backward":
            yield from () if call.operator else self._of_forward(call)
        elif call.phase == "gradient":
            yield from self._of_gradient(call)
        else:
            yield from self._of_optimizer(call)

    def _own_weights(self, call: Call) -> Iterator[Edge]:
        """Yield what made the weights of a module in earlier steps: gradients, the optimizer, its state included."""
        for sources in self._weights.get((call.rank, call.module), {}).values():
            for record, place in sources:
                if place[0] < (call.rank, call.step, 0):
                    yield Edge(record, place)

    def _of_forward(self, call: Call) -> Iterator[Edge]:
        """Yield what a module's forward was given and has made; where that is not there, the end of the forward."""
        when = (call.rank, call.step)
        key = self._forward.get((*when, call.module, call.call))
        if key is not None:
            node = self._nodes[key]
            yield from (edge for edge in node.edges if edge.source is not None)
            yield from self._outputs(node.call)
        if (key is None or call.module == ROOT_MODULE) and when in self._end:
            yield from self._outputs(self._nodes[self._end[when]].call)

    def _of_gradient(self, call: Call) -> Iterator[Edge]:
        """Yield what arrived at the module that holds a parameter, and the gradient that was there before."""
        key = self._backward.get((call.rank, call.step, call.module))
        if key is not None:
            yield from self._nodes[key].edges
        for record in call.outputs:
            yield from self._before(call, record)

    def _of_optimizer(self, call: Call) -> Iterator[Edge]:
        for record in call.outputs[:1]:
            yield from self._before(call, record)
        yield from self._own_weights(call)

    def _before(self, call: Call, record: Record) -> Iterator[Edge]:
        known = self._gradients.get((call.rank, call.step, call.module, record.identity.index))
        if known is not None:
            yield Edge(*known)

    @staticmethod
    def _outputs(call: Call) -> Iterator[Edge]:
        return (Edge(record, (key_of(call), record.identity.index)) for record in call.outputs)

"""What the phases of training depend on beside their inputs: forward, weights and gradients that came before.

Backward uses what its forward kept; a gradient is made of what arrived at its module; the optimizer makes the next step's
weights. Without these edges everything after the first difference would seem to start anew in every phase and every step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from precflow.agent.contract import OUTSIDE, ROOT_MODULE
from precflow.diagnosis.nodes import CallKey, CallNode, Edge, OutputKey, key_of
from precflow.dumps.records import Call, Record

Source = tuple[Record, OutputKey]
_Place = tuple[int, int, str]
_Weights = dict[tuple[int, str], dict[tuple[str, str], list[Source]]]


class Phases:
    """Remembers what later phases depend on; calls come in order of completion.

    Args:
        nodes: The graph so far.
        calls: All calls in order of completion, those that are not in the graph yet as well.
    """

    def __init__(self, nodes: Mapping[CallKey, CallNode], calls: Iterable[Call] = ()) -> None:
        self._nodes = nodes
        self._forward: dict[_Place, dict[int, CallKey]] = defaultdict(dict)  # rank, step and module -> call -> its own forward
        self._end: dict[tuple[int, int], CallKey] = {}  # rank and step -> the last call of the forward
        self._lines: dict[_Place, list[Call]] = defaultdict(list)  # rank, step and module -> all its backwards
        self._backward: dict[_Place, list[CallKey]] = defaultdict(list)  # those of them that are over
        self._gradients: dict[tuple[int, int, str, str], Source] = {}  # rank, step, module and parameter -> its gradient
        self._weights: _Weights = defaultdict(dict)  # rank and module -> weight and phase -> what was last made of it
        self._added: Counter[tuple[int, int, str, str]] = Counter()  # how often backward adds to a parameter's gradient
        for call in calls:
            if call.phase == "backward" and not call.operator:
                self._lines[call.rank, call.step, call.module].append(call)
            elif call.phase == "gradient":
                self._added[_parameter(call)] += 1

    def note(self, call: Call) -> None:
        """Remember a call that is in the graph now."""
        key = key_of(call)
        if call.phase == "forward":
            self._end[key[:2]] = key
            if not call.operator:
                self._forward[(*key[:2], call.module)][call.call] = key
        elif call.phase == "backward" and not call.operator:
            self._backward[(*key[:2], call.module)].append(key)
        elif call.phase in {"gradient", "optimizer"} and call.outputs:
            name = call.outputs[0].index
            sources = [(record, (key, record.index)) for record in call.outputs]
            self._weights[call.rank, call.module][name, call.phase] = sources
            if call.phase == "gradient":
                self._gradients[(*key[:2], call.module, name)] = sources[0]

    def weight(self, call: Call, record: Record) -> OutputKey | None:
        """Return what made a weight in an earlier step."""
        module, _, name = record.weight.rpartition(".")
        made = self._weights.get((call.rank, module), {}).get((name, "optimizer"), ())
        return next((place for _, place in made if place[0] < (call.rank, call.step, 0)), None)

    def under_way(self, call: Call) -> Call | None:
        """Return the backward of the module that a gradient belongs to, where its line is only written afterwards.

        A linear layer has the gradient of its weights before that of its input.
        """
        if call.phase != "gradient":
            return None
        over = len(self._backward.get(self._runs(call), ()))
        return next((line for number, line in self._summed_up(call) if number >= over), None)

    def _summed_up(self, call: Call) -> Iterator[tuple[int, Call]]:
        """Yield the backwards of a module that a gradient is the sum of, numbered in the step.

        A module that ran several times has its gradient once, when all of them are added up; a step of several backwards has
        it once for each, which ``call`` counts.
        """
        lines = self._lines.get(self._runs(call), [])
        each = max(1, len(lines) // max(1, self._added[_parameter(call)]))
        return ((number, line) for number, line in enumerate(lines) if number // each == call.call)

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
        key = self._forward.get((*when, call.module), {}).get(call.call)
        if key is not None:
            node = self._nodes[key]
            yield from (edge for edge in node.edges if edge.source is not None)
            yield from self._outputs(node.call)
        if (key is None or call.module == ROOT_MODULE) and when in self._end:
            yield from self._outputs(self._nodes[self._end[when]].call)

    def _of_gradient(self, call: Call) -> Iterator[Edge]:
        """Yield what arrived at the module that holds a parameter, and the gradient that was there before."""
        over = self._backward.get(self._runs(call), ())
        done = [over[number] for number, _ in self._summed_up(call) if number < len(over)]
        for key in done:
            yield from self._nodes[key].edges
        if not done and self.under_way(call) is None:
            yield from self._arrived(call)
        for record in call.outputs:
            yield from self._before(call, record)

    def _arrived(self, call: Call) -> Iterator[Edge]:
        """Yield what its last backward was given; where no backward was recorded, what its forward and the whole one made."""
        place = self._runs(call)
        over = self._backward.get(place)
        if over:
            yield from self._nodes[over[-1]].edges
            return
        made = [*self._forward.get(place, {}).values(), self._end.get(place[:2])]
        for key in (key for key in made if key is not None):
            yield from (edge for edge in self._nodes[key].edges if edge.source is not None)
            yield from self._outputs(self._nodes[key].call)

    def _runs(self, call: Call) -> _Place:
        """Return where a parameter is used: its module, or the one around it if that never ran itself (as in attention)."""
        module = call.module
        while module not in {ROOT_MODULE, OUTSIDE}:
            place = (call.rank, call.step, module)
            if place in self._lines or place in self._forward:
                return place
            module = module.rpartition(".")[0]
        return (call.rank, call.step, module)

    def _of_optimizer(self, call: Call) -> Iterator[Edge]:
        before = [edge for record in call.outputs[:1] for edge in self._before(call, record)]
        yield from before or self._arrived(call)  # gradients may not have been asked for
        yield from self._own_weights(call)

    def _before(self, call: Call, record: Record) -> Iterator[Edge]:
        known = self._gradients.get((call.rank, call.step, call.module, record.index))
        if known is not None:
            yield Edge(*known)

    @staticmethod
    def _outputs(call: Call) -> Iterator[Edge]:
        return (Edge(record, (key_of(call), record.index)) for record in call.outputs)


def _parameter(call: Call) -> tuple[int, int, str, str]:
    """Return rank, step, module and parameter of a gradient."""
    return call.rank, call.step, call.module, call.outputs[0].index if call.outputs else ""

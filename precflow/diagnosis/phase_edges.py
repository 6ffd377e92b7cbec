"""Edges between the phases of training: what a call depends on besides its inputs.

Backward uses what its forward kept; a parameter's gradient is made of what arrived at its module; the optimizer makes the
weights of the next step. Without these edges an error would seem to start anew in every phase and every step, and each of them
would have a suspect of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, OUTSIDE, ROOT_MODULE
from precflow.diagnosis.nodes import CallKey, CallNode, Edge, OutputKey, key_of
from precflow.dumps.records import Call, Record

_Source = tuple[Record, OutputKey]
_ModuleKey = tuple[int, int, str]  # rank, step and module
_ParameterKey = tuple[int, int, str, str]  # rank, step, module and parameter
_Weights = dict[tuple[int, str], dict[tuple[str, str], list[_Source]]]


class PhaseEdges:
    """Finds the edges between phases; calls come in order of completion.

    Args:
        nodes: The graph so far, which grows while calls are noted.
        calls: All calls in order of completion, those that are not in the graph yet as well.
    """

    def __init__(self, nodes: Mapping[CallKey, CallNode], calls: Iterable[Call] = ()) -> None:
        self._nodes = nodes
        self._forward: dict[_ModuleKey, dict[int, CallKey]] = defaultdict(dict)  # number of the call -> its own forward
        self._end: dict[tuple[int, int], CallKey] = {}  # rank and step -> the last call of the forward
        self._all_backwards: dict[_ModuleKey, list[Call]] = defaultdict(list)  # those that are still to come as well
        self._done_backwards: dict[_ModuleKey, list[CallKey]] = defaultdict(list)
        self._gradients: dict[_ParameterKey, _Source] = {}
        self._weights: _Weights = defaultdict(dict)  # rank and module -> weight and phase -> what was last made of it
        self._added: Counter[_ParameterKey] = Counter()  # how often backward adds to a parameter's gradient
        for call in calls:
            if call.phase == BACKWARD and not call.operator:
                self._all_backwards[call.rank, call.step, call.module].append(call)
            elif call.phase == GRADIENT:
                self._added[_parameter(call)] += 1

    def note(self, key: CallKey, call: Call) -> None:
        """Remember a call that is in the graph now."""
        if call.phase == FORWARD:
            self._end[key[:2]] = key
            if not call.operator:
                self._forward[(*key[:2], call.module)][call.call] = key
        elif call.phase == BACKWARD and not call.operator:
            self._done_backwards[(*key[:2], call.module)].append(key)
        elif call.phase in {GRADIENT, OPTIMIZER} and call.outputs:
            name = call.outputs[0].index
            sources = [(record, (key, record.index)) for record in call.outputs]
            self._weights[call.rank, call.module][name, call.phase] = sources
            if call.phase == GRADIENT:
                self._gradients[(*key[:2], call.module, name)] = sources[0]

    def find_weight(self, call: Call, record: Record) -> OutputKey | None:
        """Return the optimizer's call that made a weight in an earlier step."""
        module, _, name = record.weight.rpartition(".")
        sources = self._weights.get((call.rank, module), {}).get((name, OPTIMIZER), ())
        return next((output for _, output in sources if output[0] < (call.rank, call.step, 0)), None)

    def find_unfinished_backward(self, call: Call) -> Call | None:
        """Return the backward that a gradient comes from, if that backward completes only after the gradient.

        A linear layer has the gradient of its weights before that of its input, so the record of its backward comes later.
        """
        if call.phase != GRADIENT:
            return None
        done = len(self._done_backwards.get(self._find_user(call), ()))
        return next((backward for number, backward in self._find_summed_backwards(call) if number >= done), None)

    def _find_summed_backwards(self, call: Call) -> Iterator[tuple[int, Call]]:
        """Yield the backwards of a module that a gradient is the sum of, numbered in the step.

        A module that ran three times in one forward has three backwards and one gradient, their sum. A step that accumulates
        over two batches has such a sum for each of them, and ``call`` counts these: with six backwards in all, call 0 is the
        sum of the backwards 0 to 2, call 1 of 3 to 5.
        """
        backwards = self._all_backwards.get(self._find_user(call), [])
        per_addition = max(1, len(backwards) // max(1, self._added[_parameter(call)]))
        return ((number, backward) for number, backward in enumerate(backwards) if number // per_addition == call.call)

    def edges(self, call: Call) -> Iterator[Edge]:
        """Yield the edges of a call besides those of its inputs."""
        if call.phase == FORWARD:
            yield from () if call.operator else self._list_own_weights(call)
        elif call.phase == BACKWARD:
            yield from () if call.operator else self._list_forward_edges(call)
        elif call.phase == GRADIENT:
            yield from self._list_gradient_edges(call)
        else:
            before = [edge for record in call.outputs[:1] for edge in self._find_earlier_gradient(call, record)]
            yield from before or self._list_arrivals(call)  # gradients may not have been recorded
            yield from self._list_own_weights(call)

    def _list_own_weights(self, call: Call) -> Iterator[Edge]:
        """Yield what made the weights of a module in earlier steps: gradients, the optimizer, its state included."""
        for sources in self._weights.get((call.rank, call.module), {}).values():
            for record, output in sources:
                if output[0] < (call.rank, call.step, 0):  # order 0 of this step: everything of earlier steps
                    yield Edge(record, output)

    def _list_forward_edges(self, call: Call) -> Iterator[Edge]:
        """Yield what a module's forward was given and made; if it was not recorded, what the whole forward made last."""
        when = (call.rank, call.step)
        key = self._forward.get((*when, call.module), {}).get(call.call)
        if key is not None:
            node = self._nodes[key]
            yield from (edge for edge in node.edges if edge.source is not None)
            yield from self._list_outputs(node.call)
        if (key is None or call.module == ROOT_MODULE) and when in self._end:
            yield from self._list_outputs(self._nodes[self._end[when]].call)

    def _list_gradient_edges(self, call: Call) -> Iterator[Edge]:
        """Yield what arrived at the module that holds a parameter, and the gradient that was there before."""
        backwards = self._done_backwards.get(self._find_user(call), ())
        done = [backwards[number] for number, _ in self._find_summed_backwards(call) if number < len(backwards)]
        for key in done:
            yield from self._nodes[key].edges
        if not done and self.find_unfinished_backward(call) is None:
            yield from self._list_arrivals(call)
        for record in call.outputs:
            yield from self._find_earlier_gradient(call, record)

    def _list_arrivals(self, call: Call) -> Iterator[Edge]:
        """Yield what the module's last backward was given; if none was recorded, what its forward and the whole one made."""
        user = self._find_user(call)
        backwards = self._done_backwards.get(user)
        if backwards:
            yield from self._nodes[backwards[-1]].edges
            return
        ends = [*self._forward.get(user, {}).values(), self._end.get(user[:2])]
        for key in (key for key in ends if key is not None):
            yield from (edge for edge in self._nodes[key].edges if edge.source is not None)
            yield from self._list_outputs(self._nodes[key].call)

    def _find_user(self, call: Call) -> _ModuleKey:
        """Return the module that uses a parameter: its own, or the innermost around it that ran.

        ``nn.MultiheadAttention`` reads the weight of its ``out_proj`` and never calls it.
        """
        module = call.module
        while module not in {ROOT_MODULE, OUTSIDE}:
            user = (call.rank, call.step, module)
            if user in self._all_backwards or user in self._forward:
                return user
            module = module.rpartition(".")[0]
        return (call.rank, call.step, module)

    def _find_earlier_gradient(self, call: Call, record: Record) -> Iterator[Edge]:
        known = self._gradients.get((call.rank, call.step, call.module, record.index))
        if known is not None:
            yield Edge(*known)

    @staticmethod
    def _list_outputs(call: Call) -> Iterator[Edge]:
        return (Edge(record, (key_of(call), record.index)) for record in call.outputs)


def _parameter(call: Call) -> _ParameterKey:
    return call.rank, call.step, call.module, call.outputs[0].index if call.outputs else ""

"""What the gradients of a module have to be, by the functions that it called: work for an agent, from the dumps alone.

A dump of modules and functions shows no operator of the backward pass. But it has the gradients that arrive at each module's
outputs and leave through its inputs, and each function of the forward with its tensors. Between two recorded gradients there
are only functions that a module called itself, so autograd can say in float64 what the one has to be, given the others::

    def forward(self, x):                gradients that are recorded      what they have to be
        y = self.first(x)                arriving at first's output       through gelu, what leaves second's input
        return self.second(gelu(y)) + x  leaving through this input       first's part, and through the addition

Each function is differentiated at the tensors that the same side recorded, so an error that was there before is on both sides
of the subtraction. The agent computes it (:mod:`precflow.agent.replay.gradients`). Where the gradients of the reference itself
are not what comes out, something was not recorded, and nothing is said.

The gradient of a weight that several module calls use (a tied embedding and output head, a layer that runs twice) is the sum
of what each of them gives. They are described together, and only if a gradient of each use was recorded.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from precflow.agent.contract import API, BACKWARD, FORWARD, GRADIENT, ROOT_MODULE, join_names
from precflow.diagnosis.gradients.linear import is_product
from precflow.diagnosis.nodes import list_read_inputs
from precflow.dumps.dtypes import FLOATS
from precflow.dumps.records import Call, Record

Located = Mapping[str, Any]
"""Where a tensor lies, as a line for the agent says it."""
_Step = tuple[int, int]
"""Step and rank."""


@dataclass
class _Frame:
    """What a module call did itself: its own functions, and the calls of the modules right inside it, in order."""

    functions: list[Call] = field(default_factory=list)
    inside: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Described:
    """The gradients of one module call on one side.

    Attributes:
        graph: Functions, known gradients and results, as the agent reads them (:mod:`precflow.agent.replay.calls`).
        inputs: Where the tensors lie that are needed, by name.
        outputs: Where the recorded gradients lie that are results.
    """

    graph: dict[str, Any] = field(default_factory=lambda: {"functions": [], "total": {}, "parts": {}, "results": []})
    inputs: dict[str, Located] = field(default_factory=dict)
    outputs: list[Located] = field(default_factory=list)

    @property
    def shape(self) -> dict[str, Any]:
        """The graph without the arguments of functions: those of the reference count on both sides."""
        bare = [{name: value for name, value in one.items() if name != "arguments"} for one in self.graph["functions"]]
        return {**self.graph, "functions": bare}

    def add_gradient(self, found: Located | None) -> str:
        """Add a gradient that was recorded; return its name, ``""`` for one that was not kept."""
        name = f"gradient {len(self.inputs)}" if found is not None else ""
        if found is not None:
            self.inputs[name] = found
        return name


@dataclass(frozen=True)
class _Result:
    """A gradient to compute: of which tensor, its record, and by what call and index it is named."""

    of: str
    record: Record
    call: Call
    index: str


class FunctionGradients:
    """The calls of one side, ordered for the gradients of its modules.

    Args:
        calls: All calls of a dump.
        name_call: Returns the identity of a call as text, the same on both sides.
        locate: Tells where a tensor lies; ``None`` if it was not kept whole.
    """

    def __init__(
        self, calls: Iterable[Call], name_call: Callable[[Call], str], locate: Callable[[Record], Located | None]
    ) -> None:
        self._name_call, self._locate = name_call, locate
        self._makers: dict[tuple[_Step, int], Call] = {}
        self._modules: dict[tuple[_Step, str], list[Call]] = defaultdict(list)
        self._users: dict[tuple[_Step, str], set[tuple[str, int]]] = defaultdict(set)  # module calls that use a weight
        self._readers: dict[tuple[_Step, str], set[str]] = defaultdict(set)  # modules that read a tensor, by its name
        self._backwards: dict[tuple[_Step, str, int], Call] = {}
        self._gradients: dict[tuple[_Step, str], Call] = {}
        for call in sorted(calls, key=lambda one: one.order):
            step = (call.step, call.rank)
            if call.phase == FORWARD and (call.level == API or not call.operator):
                self._makers[step, call.order] = call
                if not call.operator:
                    self._modules[step, call.module].append(call)
                for record in call.inputs:
                    self._readers[step, self._key_of_input(record)].add(call.module)
                    if call.operator:
                        self._users[step, record.weight].add((call.module, call.call))
            elif call.phase == BACKWARD and not call.operator:
                self._backwards[step, call.module, call.call] = call
            elif call.phase == GRADIENT and call.outputs:
                self._gradients[step, join_names(call.module, call.outputs[0].index)] = call
        self._frames = self._find_frames()

    def _find_frames(self) -> dict[tuple[_Step, str, int], _Frame]:
        frames: dict[tuple[_Step, str, int], _Frame] = defaultdict(_Frame)
        for (step, _), call in self._makers.items():
            if call.operator:
                frames[step, call.module, call.call].functions.append(call)
            elif (around := self._find_around(call)) is not None:
                frames[step, around.module, around.call].inside.append(call)
        return frames

    def _find_around(self, call: Call) -> Call | None:
        """Return the module call that made this one: of the nearest module around it that ran, the next to complete."""
        step, name = (call.step, call.rank), call.module
        while name != ROOT_MODULE:
            name = name.rpartition(".")[0]
            runs = self._modules.get((step, name), [])
            place = bisect.bisect(runs, call.order, key=lambda one: one.order)
            if place < len(runs):
                return runs[place]
        return None

    def describe(self, call: Call) -> Described | None:
        """Return what gives the gradients of a module call, or of a weight that several of them use.

        Args:
            call: The record of the module's gradients, or of the weight's.

        Returns:
            ``None`` if the module called no function, if one module call alone uses the weight, or if nothing can be said.
        """
        return self._describe_shared(call) if call.phase == GRADIENT else self._describe_module(call)

    def _find_module_call(self, step: _Step, module: str, number: int) -> Call | None:
        return next((one for one in self._modules.get((step, module), ()) if one.call == number), None)

    def _is_read_outside(self, own: Call, key: str) -> bool:
        if own.module == ROOT_MODULE:
            return False
        readers = self._readers.get(((own.step, own.rank), key), ())
        return not all(f"{name}.".startswith(f"{own.module}.") for name in readers)

    def _describe_module(self, backward: Call) -> Described | None:
        step = (backward.step, backward.rank)
        frame = self._frames.get((step, backward.module, backward.call))
        own = self._find_module_call(step, backward.module, backward.call)
        # A result that is no output of the module has to be named by one of its own records.
        if frame is None or not frame.functions or own is None or own.compiled:
            return None
        made = Described()
        results = list(self._add_gradients(made, own, backward, frame))
        added = {*made.graph["parts"]}
        for call in reversed(frame.functions):
            if self._add_function(made, call, added):
                results += self._find_weights(call)
        self._add_results(made, [one for one in results if one.of in added])
        return made if made.outputs and made.graph["functions"] else None

    def _describe_shared(self, gradient: Call) -> Described | None:
        """Return what gives the gradient of a weight that several module calls use; ``None`` where one of them is not known."""
        step = (gradient.step, gradient.rank)
        record = gradient.outputs[0]
        weight = join_names(gradient.module, record.index)
        users = sorted(self._users.get((step, weight), ()))
        if len(users) < 2:
            return None
        made, of = Described(), _key_of_weight(weight)
        depending: list[tuple[Call, set[str]]] = []  # functions, and the tensors of their module call that come of the weight
        for module, number in users:
            own, backward = (
                self._find_module_call(step, module, number),
                self._backwards.get((step, module, number)),
            )
            if own is None or own.compiled or backward is None:
                return None
            frame = self._frames[step, module, number]
            list(self._add_gradients(made, own, backward, frame))
            depending += self._find_depending(made, frame, of)
        # A gradient that a module hands on counts what its own functions add to it: neither may be counted twice.
        every = {key for _, reached in depending for key in reached}
        taken = [({self._key_of_input(one) for one in call.inputs}, reached) for call, reached in depending]
        if of in made.graph["parts"] or any(keys & (every - reached) for keys, reached in taken):
            return None
        added = {*made.graph["parts"]}
        for call, _ in sorted(depending, key=lambda each: -each[0].order):
            if not self._add_function(made, call, added):
                return None
        self._add_results(made, [_Result(of, record, gradient, record.index)])
        return made if made.outputs else None

    def _find_depending(self, made: Described, frame: _Frame, of: str) -> list[tuple[Call, set[str]]]:
        """Return the functions of a module call whose result depends on a weight, each with all tensors in it that do.

        It ends at tensors whose whole gradient was recorded.
        """
        reached, found = {of}, []
        for call in frame.functions:
            if not reached.isdisjoint(self._key_of_input(record) for record in call.inputs):
                found.append(call)
                reached |= {self._key_of_output(call, record) for record in call.outputs} - {"", *made.graph["total"]}
        return [(call, reached) for call in found]

    def _add_function(self, made: Described, call: Call, added: set[str]) -> bool:
        """Add a function before those that are there; tell whether a gradient arrives at what it made.

        Args:
            made: What is described.
            call: The function.
            added: Tensors to whose gradients something is added; those that the function takes are put to them.
        """
        outputs = {record.index: self._key_of_output(call, record) for record in call.outputs}
        if added.isdisjoint(outputs.values()) and made.graph["total"].keys().isdisjoint(outputs.values()):
            return False
        function = self._describe_function(made, call, outputs)
        made.graph["functions"].insert(0, function)
        added.update(key for key, *_ in function["inputs"].values())
        return True

    def _add_gradients(self, made: Described, own: Call, backward: Call, frame: _Frame) -> Iterator[_Result]:
        """Add the gradients that arrive at outputs and leave through inputs; yield those that have to come out."""
        total, parts = made.graph["total"], made.graph["parts"]
        for call in (own, *frame.inside):
            gradients = self._backwards.get(((call.step, call.rank), call.module, call.call))
            if gradients is None:
                continue
            returned = {record.index: self._key_of_output(call, record) for record in call.outputs}
            taken = {record.index: self._key_of_input(record) for record in call.inputs}
            for record in gradients.inputs:
                key = returned.get(record.index, "")
                if not key or key in total:
                    continue
                total[key] = made.add_gradient(self._locate(record))
                # The module around has to have a record to be named by. What arrives at its own output may come from outside;
                # where it alone reads it (the logits of a router, whose shares it returns too), all comes from inside.
                if backward.outputs and (call is not own or not self._is_read_outside(own, key)):
                    yield _Result(key, record, backward, f"{call.module}~{call.call}.{record.index}")
            for record in gradients.outputs:
                key = taken.get(record.index, "")
                if not key:
                    continue
                if call is not own:
                    parts.setdefault(key, []).append(made.add_gradient(self._locate(record)))
                elif key not in total and not is_product(backward):
                    yield _Result(key, record, backward, record.index)

    def _describe_function(self, made: Described, call: Call, outputs: Mapping[str, str]) -> dict[str, Any]:
        """Return a function as the agent reads it, and add the tensors that it needs."""
        inputs: dict[str, Any] = {}
        read = {record.index for record in list_read_inputs(call)}
        is_whole = not call.compiled
        for record in call.inputs:
            key = self._key_of_input(record) or f"{self._name_call(call)} input {record.index}"
            inputs[record.index] = [key, record.dtype, list(record.shape)]
            is_known = key in made.inputs or self._add_tensor(made, key, record)
            # What only moves values has the same gradient whatever they are.
            is_whole &= is_known or record.index not in read or (call.movement and record.dtype in FLOATS)
        for record in () if call.movement else call.outputs:
            if outputs[record.index] not in made.inputs:  # they tell which function it was
                self._add_tensor(made, outputs[record.index], record)
        return {
            "level": call.level,
            "operator": call.operator,
            "class": call.class_name,
            "arguments": dict(call.arguments),
            "inputs": inputs,
            "outputs": {record.index: [outputs[record.index], record.dtype, list(record.shape)] for record in call.outputs},
            "is_whole": is_whole,
        }

    def _add_tensor(self, made: Described, key: str, record: Record) -> bool:
        found = self._locate(record)
        if found is not None:
            made.inputs[key] = found
        return found is not None

    def _find_weights(self, call: Call) -> Iterator[_Result]:
        """Yield the gradients of the weights that a function uses, if no other module call uses them in the step."""
        step = (call.step, call.rank)
        for weight in {record.weight: None for record in call.inputs if record.weight}:
            gradient = self._gradients.get((step, weight))
            if gradient is not None and not is_product(gradient) and len(self._users[step, weight]) == 1:
                (record,) = gradient.outputs
                yield _Result(_key_of_weight(weight), record, gradient, record.index)

    def _add_results(self, made: Described, results: Iterable[_Result]) -> None:
        named: set[tuple[str, str]] = set()
        for one in results:
            name = self._name_call(one.call)
            found = self._locate(one.record) if (name, one.index) not in named else None
            if found is not None:
                named.add((name, one.index))
                index = str(len(made.outputs))
                made.graph["results"].append({"index": index, "of": one.of, "call": name, "named": one.index})
                made.outputs.append({**found, "index": index})

    def _key_of_input(self, record: Record) -> str:
        """Return the name of the tensor that went in: that of the call that made it; ``""`` if none was recorded."""
        if record.weight:
            return _key_of_weight(record.weight)
        if record.source is None:
            return ""
        order, index = record.source
        maker = self._makers.get(((record.whose.step, record.whose.rank), order))
        return f"{self._name_call(maker)} {index}" if maker is not None else ""

    def _key_of_output(self, call: Call, record: Record) -> str:
        return self._key_of_input(record) if record.source is not None else f"{self._name_call(call)} {record.index}"


def _key_of_weight(weight: str) -> str:
    return f"weight {weight}"

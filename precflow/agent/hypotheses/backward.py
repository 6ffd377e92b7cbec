"""The backward of a module under suspicion, which runs again each time with one thing done otherwise.

The gradients between two recorded ones are on no side: a softmax whose backward is rounded to bfloat16 shows only in the
gradients of the queries and keys behind it. So the chain of :mod:`~precflow.agent.replay.gradients` runs again at the target's
tensors, with what leaves one function rounded or scaled, or with one product of shortened operands, and is compared with
all gradients of the module that were recorded, right ones too. Each gradient counts in units of the sum of its absolute terms.
In 16 bits each function's gradient is rounded to its type, as a device does, with the change and without it.

A hypothesis about it is a module of ``of_backward`` with a function and a constant, as one about a call is
(:mod:`~precflow.agent.hypotheses.subject`)::

    def propose(subject: Backward) -> Iterator[Candidate]:
        for place in subject.places():
            yield subject.change("negative", place, torch.neg)

    HYPOTHESIS = Hypothesis("backward", propose)
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

import torch

from precflow.agent.hypotheses.fit import Aim
from precflow.agent.hypotheses.narrow import cut, round_to
from precflow.agent.hypotheses.residuals import Results, describe_residuals
from precflow.agent.hypotheses.subject import Candidate
from precflow.agent.replay.calls import CannotCompute, GradientGraph, find_dtype
from precflow.agent.replay.gradients import Differentiated, GradientComputation, Ran, Tensors, pull_back
from precflow.agent.replay.readings import Exact, widen

_SEVERAL = 16  # wrong elements; a change may be right about fewer by chance
_ALL = ""  # in place of a path: what leaves through all of them

_Gradients = Dict[str, Optional[torch.Tensor]]
_Change = Callable[[torch.Tensor], torch.Tensor]
Leave = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes input, output and arriving gradient of a function of one tensor; returns the gradient that leaves."""


class Side(NamedTuple):
    """One side's tensors: those of the forward and known gradients by name, the recorded results, and float64 at the former."""

    inputs: Tensors
    recorded: Tensors
    exact: Exact


class Place(NamedTuple):
    """Where something is done otherwise: a function by its number, and the path of an input, or all (``""``)."""

    function: int
    path: str = _ALL


class Backward:
    """The wrong backward of a module.

    Args:
        graph: Functions and known gradients of the module.
        computation: What computed ``exact`` of both sides; it knows how the calls are read.
        reference: Its tensors.
        target: Its tensors.

    Attributes:
        functions: Those that the module called, in order of the forward.
        aim: What hypotheses are measured against.
        work: Elements that one run takes.

    Raises:
        CannotCompute: Too few of its gradients are wrong, not all are finite, or one does not come out of its functions.
    """

    def __init__(self, graph: GradientGraph, computation: GradientComputation, reference: Side, target: Side) -> None:
        self.functions = computation.functions
        self._graph, self._reference, self._target = graph, reference, target
        slots = [slot for each in graph.functions for slot in (*each.inputs.values(), *each.outputs.values())]
        self.work = float(sum(math.prod(slot.shape) for slot in slots))
        indices = [index for index in target.exact.outputs if index in reference.exact.outputs]
        recorded = {index: target.recorded[index] for index in indices}
        right = {index: target.exact.outputs[index] for index in indices}
        if not all(bool(torch.isfinite(each).all()) for each in (*recorded.values(), *right.values())):
            raise CannotCompute("a gradient is not finite")
        if sum(int((widen(recorded[index]) != right[index]).sum()) for index in indices) < _SEVERAL:
            raise CannotCompute("too few elements are wrong")
        self._sizes = {index: float(target.exact.terms[index].square().sum()) for index in indices}
        if not any(self._sizes.values()):
            raise CannotCompute("its gradients are zero")
        self._chains = [_Chain(graph, self.functions, target.inputs)]
        if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in target.recorded.values()):
            self._chains.append(_Chain(graph, self.functions, target.inputs, rounds=True))
        own = math.fsum(_measure_own(reference, target, index) for index in indices)
        ways = [chain.run() for chain in self._chains]
        known = {index: each for index, each in recorded.items() if self._sizes[index]}
        if any(index not in way for index in known for way in ways):
            raise CannotCompute("a gradient does not come out of its functions")
        self.aim = Aim(known, ways, sizes=self._sizes, own=own, is_sum=True)

    def describe_residuals(self) -> List[Dict[str, Any]]:
        """Return the errors of both sides against float64, gradient by gradient."""
        reference, target = (Results(side.recorded, side.exact.outputs) for side in (self._reference, self._target))
        return describe_residuals({each.index: (each.call, each.named) for each in self._graph.results}, reference, target)

    def places(self) -> Iterator[Place]:
        """Yield where gradients that leave a function can be changed so that it shows: all of them, and each alone."""
        for number, function in enumerate(self.functions):
            if function.moves or not self._chains[0].reaches(number):
                continue
            paths = self.paths(number)
            for path in [_ALL, *(paths if len(paths) > 1 else [])]:
                if self.fit_factor(Place(number, path)) is not None:
                    yield Place(number, path)

    def paths(self, number: int) -> List[str]:
        """Return the inputs of a function through which a gradient leaves."""
        return [path for path in self.functions[number].floats if self._chains[0].leaves(number, path)]

    def dtype(self, number: int, path: str) -> torch.dtype:
        """Return the type of an input of a function."""
        return find_dtype(self.functions[number].floats[path].dtype)

    def products(self) -> Iterator[int]:
        """Yield the numbers of the functions that multiply matrices, as far as their gradients are known."""
        for number, function in enumerate(self.functions):
            if function.multiplies and not function.moves and self._chains[0].reaches(number):
                yield number

    def functions_of_one(self) -> Iterator[int]:
        """Yield the numbers of the functions of one tensor, as far as their gradients are known."""
        for number, function in enumerate(self.functions):
            if len(function.floats) == 1 and not function.moves and self._chains[0].reaches(number):
                yield number

    def fit_factor(self, place: Place) -> Optional[float]:
        """Return the factor of what leaves there that explains most: gradients are linear in it, and here it counts twice.

        ``None`` if it reaches none of the gradients, or not all are known.
        """
        plain, doubled = self._chains[0].run(), self._chains[0].run(place, _double)
        product = square = 0.0
        for index, size in self._sizes.items():
            if index not in plain or index not in doubled:
                return None
            part, weight = doubled[index] - plain[index], 1.0 / size if size > 0.0 else 0.0
            product += weight * float((part * (widen(self._target.recorded[index]) - plain[index])).sum())
            square += weight * float(part.square().sum())
        return 1.0 + product / square if square > 0.0 and math.isfinite(product) else None

    def change(self, name: str, place: Place, change: _Change, factor: float = 1.0) -> Candidate:
        """Return the backward with another gradient that leaves a function.

        Args:
            name: Of the change.
            place: Where.
            change: Returns the other gradient.
            factor: A number that was fitted.
        """
        return self._propose(name, place, lambda chain: chain.run(place, change), factor)

    def cut(self, name: str, number: int, bits: int, *, truncate: bool) -> Candidate:
        """Return the backward with one product of operands that have so many bits."""
        return self._propose(name, Place(number), lambda chain: chain.cut_operands(number, bits, truncate=truncate))

    def leave(self, name: str, number: int, leave: Leave) -> Candidate:
        """Return the backward with another form of that of one function of one tensor."""
        return self._propose(name, Place(number), lambda chain: chain.take_form(number, leave))

    def _propose(self, name: str, place: Place, run: Callable[[_Chain], Tensors], factor: float = 1.0) -> Candidate:
        operator = self._graph.functions[place.function].call.operator
        facts = {"function": place.function, "operator": operator, "path": place.path, "factor": factor}
        return Candidate(name, lambda: [run(chain) for chain in self._chains], facts=facts)


def _measure_own(reference: Side, target: Side, index: str) -> float:
    """Return the square of the reference's own error, relative to the absolute terms; at least that of a rounding."""
    scale = float(reference.exact.terms[index].square().sum())
    error = widen(reference.recorded[index]) - reference.exact.outputs[index]
    digits = torch.finfo(target.recorded[index].dtype).eps
    return max(float(error.square().sum()) / scale if scale > 0.0 else 0.0, (digits / 4) ** 2)


def _double(gradient: torch.Tensor) -> torch.Tensor:
    return 2.0 * gradient


class _Chain:
    """The backward of a module in float64, which runs again with a change from the function on that is changed.

    Args:
        graph: Functions and known gradients.
        functions: The functions.
        inputs: A side's tensors.
        rounds: Round what leaves each function to the type of its input.
    """

    def __init__(
        self, graph: GradientGraph, functions: List[Differentiated], inputs: Mapping[str, torch.Tensor], *, rounds: bool = False
    ) -> None:
        self.functions = functions
        self._graph, self._inputs, self._rounds = graph, inputs, rounds
        self._ran: Dict[int, Ran] = {}
        self._before: Dict[int, _Gradients] = {}  # the gradients that are known when a function's turn comes
        self._arrived: Dict[int, Tensors] = {}
        self._left: Dict[int, Tensors] = {}
        sums: _Gradients = {}
        for key, names in graph.parts.items():
            for name in names:
                self._add(sums, key, self._take(name))
        self._start = sums
        self._plain = self._go_on(len(functions) - 1, sums, keep=True)

    def reaches(self, number: int) -> bool:
        """Tell whether a function's gradients are known."""
        return bool(self._left.get(number))

    def leaves(self, number: int, path: str) -> bool:
        """Tell whether a gradient leaves a function through this input."""
        return path in self._left.get(number, {})

    def run(self, place: Optional[Place] = None, change: Optional[_Change] = None) -> Tensors:
        """Return the gradients that come out by index, those that are known; with a change where something is given."""
        if place is None or change is None:
            return self._plain
        leaving = {
            path: self._fit_type(place.function, path, change(gradient)) if place.path in (_ALL, path) else gradient
            for path, gradient in self._left[place.function].items()
        }
        return self._continue(place.function, leaving)

    def cut_operands(self, number: int, bits: int, *, truncate: bool) -> Tensors:
        """Return the same with one product that multiplies operands of so many bits; a bias multiplies nothing."""
        function, exact = self.functions[number], self._left[number]
        shortened = {
            key: cut(value, bits, truncate=truncate) if value.is_floating_point() and value.dim() > 1 else value
            for key, value in self._inputs.items()
            if key in {slot.key for slot in function.floats.values()}
        }
        ran = function.run({**self._inputs, **shortened})
        arriving = {path: cut(gradient, bits, truncate=truncate) for path, gradient in self._arrived[number].items()}
        multiplied = pull_back(ran.outputs, ran.leaves, arriving)
        leaving = {path: multiplied[path] if gradient.dim() > 1 else gradient for path, gradient in exact.items()}
        return self._continue(number, {path: self._fit_type(number, path, each) for path, each in leaving.items()})

    def take_form(self, number: int, leave: Leave) -> Tensors:
        """Return the same with another form of the backward of one function of one tensor."""
        ran = self._ran[number]
        ((path, exact),) = self._left[number].items()
        ((index, gradient),) = self._arrived[number].items()
        values, output = widen(ran.inputs[path]), widen(ran.outputs[index]).detach()
        leaving = leave(values, output, gradient)
        return self._continue(number, {path: self._fit_type(number, path, leaving if leaving.shape == exact.shape else exact)})

    def _continue(self, number: int, leaving: Tensors) -> Tensors:
        sums = dict(self._before[number])
        self._add_leaving(sums, number, leaving)
        return self._go_on(number - 1, sums, keep=False)

    def _go_on(self, number: int, sums: _Gradients, *, keep: bool) -> Tensors:
        """Run the functions from this one back to the first, and return the results."""
        for place in range(number, -1, -1):
            function = self.functions[place]
            arriving: _Gradients = {}
            for path, slot in function.outputs.items():
                if slot.key in self._graph.total:
                    arriving[path] = self._take(self._graph.total[slot.key])
                elif slot.key in sums:
                    arriving[path] = sums[slot.key]
            leaving = self._leave(place, arriving)
            if keep:
                self._before[place] = dict(sums)
                self._arrived[place] = {path: each for path, each in arriving.items() if each is not None}
                self._left[place] = leaving or {}
            if leaving is not None:
                self._add_leaving(sums, place, leaving)
            elif arriving:
                sums.update(dict.fromkeys((slot.key for slot in function.floats.values()), None))
        found = {result.index: sums.get(result.of) for result in self._graph.results}
        return {index: gradient for index, gradient in found.items() if gradient is not None}

    def _leave(self, number: int, arriving: _Gradients) -> Optional[Tensors]:
        """Return what leaves a function; ``None`` if that cannot be said, or nothing arrives."""
        function = self.functions[number]
        known = {path: each for path, each in arriving.items() if each is not None}
        if not known or len(known) < len(arriving) or not function.is_known:
            return None
        if function.converts:
            leaving = dict(zip(function.floats, known.values()))
        else:
            try:
                if number not in self._ran:
                    self._ran[number] = function.run(self._inputs, rounds=self._rounds)
                ran = self._ran[number]
                leaving = pull_back(ran.outputs, ran.leaves, known)
            except Exception:  # noqa: BLE001  a function is data: what torch makes of it says nothing of the others
                return None
        return {path: self._fit_type(number, path, gradient) for path, gradient in leaving.items()}

    def _fit_type(self, number: int, path: str, gradient: torch.Tensor) -> torch.Tensor:
        dtype = find_dtype(self.functions[number].floats[path].dtype)
        return round_to(gradient, dtype) if self._rounds and dtype != torch.float64 else gradient

    def _take(self, name: str) -> Optional[torch.Tensor]:
        gradient = self._inputs.get(name)
        return None if gradient is None or not gradient.is_floating_point() else widen(gradient)

    def _add_leaving(self, sums: _Gradients, number: int, leaving: Tensors) -> None:
        floats = self.functions[number].floats
        for path, gradient in leaving.items():
            key = floats[path].key
            self._add(sums, key, gradient)
            added = sums[key]
            sums[key] = None if added is None else self._fit_type(number, path, added)

    @staticmethod
    def _add(sums: _Gradients, key: str, part: Optional[torch.Tensor]) -> None:
        known = sums.get(key)
        if part is None or (known is None and key in sums) or (known is not None and known.shape != part.shape):
            sums[key] = None
        else:
            sums[key] = part if known is None else known + part

"""Which one change explains wrong gradients of a module: its backward runs again, each time with one thing done otherwise.

The gradients between two recorded ones are on no side: a softmax whose backward is rounded to bfloat16 shows only in the
gradients of the queries and keys behind it. So the chain of :mod:`~precflow.agent.replay.gradients` runs again at the target's
tensors, with what leaves one function rounded or scaled, or with one product of shortened operands, and is compared with
all gradients of the module that were recorded, right ones too::

    share = 1 - sum |target - changed|^2 / sum |target - float64|^2       1 explains everything, 0 or less nothing
    left  = sqrt(sum |target - changed|^2 / sum |reference - float64|^2)   near 1: as near as the reference is to its own

Each gradient counts in units of the sum of its absolute terms. In 16 bits each function's gradient is rounded to its type, as a
device does, with the change and without it.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch

from precflow.agent.replay.backward_forms import FORMS
from precflow.agent.replay.calls import GradientGraph, find_dtype
from precflow.agent.replay.gradients import Differentiated, GradientComputation, Ran, Tensors, pull_back
from precflow.agent.replay.readings import Exact, widen

MOST_WORK = 1 << 30
"""Elements of all functions, times the runs of the chain that are tried: some tens of seconds on two cores."""
_MOST_ELEMENTS = 1 << 26  # of all functions together: their graphs are kept, half a GB in float64
_TYPES = (("bfloat16", torch.bfloat16), ("float16", torch.float16))
_BITS = (11, 10, 7)  # explicit bits of the significand: HF32, TF32, bfloat16
_SEVERAL = 16  # wrong elements; a change may be right about fewer by chance
_LEAST = 0.5  # share from which on a change is worth a line
_FORM = "form_"
_ALL = ""  # in place of a path: what leaves through all of them

Line = Dict[str, Any]
_Gradients = Dict[str, Optional[torch.Tensor]]
_Change = Callable[[torch.Tensor], torch.Tensor]


class Side(NamedTuple):
    """One side's tensors: those of the forward and known gradients by name, the recorded results, and float64 at the former."""

    inputs: Tensors
    recorded: Tensors
    exact: Exact


class _Place(NamedTuple):
    """Where something is done otherwise: a function by its number, and the path of an input, or all."""

    function: int
    path: str = _ALL


def find_alternatives(graph: GradientGraph, computation: GradientComputation, reference: Side, target: Side) -> List[Line]:
    """Return the changes that explain most of the target's error, the best first; none where the work would be too much.

    Args:
        graph: Functions and known gradients of a module.
        computation: What computed ``exact`` of both sides; it knows how the calls are read.
        reference: Its tensors.
        target: Its tensors.
    """
    elements = sum(
        math.prod(slot.shape) for each in graph.functions for slot in (*each.inputs.values(), *each.outputs.values())
    )
    tried = sum(10 * (1 + len(each.floats)) for each in computation.functions)
    compared = _Compared.of(reference, target)
    if compared is None or elements > _MOST_ELEMENTS or elements * tried > MOST_WORK:
        return []
    lines: List[Line] = []
    narrow = [tensor.dtype for tensor in target.recorded.values() if tensor.dtype in (torch.float16, torch.bfloat16)]
    chains = [_Chain(graph, computation.functions, target.inputs)]
    if narrow:
        chains.append(_Chain(graph, computation.functions, target.inputs, rounds=True))
    plain = [chain.run() for chain in chains]
    for kind, place, factor, change in _list_changes(chains[0], compared, plain[0]):
        fits = [
            compared.measure(chain.run(place, change) if change else _run_otherwise(chain, place, kind), unchanged)
            for chain, unchanged in zip(chains, plain)
        ]
        share, left = max(fits)
        if share > _LEAST:
            function = graph.functions[place.function]
            line = {"kind": kind.partition(" ")[0], "function": place.function, "operator": function.call.operator}
            lines.append({**line, "path": place.path, "factor": factor, "share": share, "left": left})
    return sorted(lines, key=lambda line: -line["share"])


def _run_otherwise(chain: _Chain, place: _Place, kind: str) -> Tensors:
    """Return what comes out with shortened operands (``operands_10`` or ``operands_10 truncated``), or with another form."""
    if kind.startswith(_FORM):
        return chain.take_form(place.function, kind[len(_FORM) :])
    name, _, truncated = kind.partition(" ")
    return chain.cut_operands(place.function, int(name.rpartition("_")[2]), truncate=bool(truncated))


def _list_changes(chain: _Chain, compared: _Compared, plain: Tensors) -> Iterator[Tuple[str, _Place, float, Optional[_Change]]]:
    """Yield what is tried: kind, place, factor (1 for none), and what to do with a gradient, ``None`` for others."""
    for number, function in enumerate(chain.functions):
        if function.moves or not chain.reaches(number):
            continue
        paths = [path for path in function.floats if chain.leaves(number, path)]
        for path in [_ALL, *(paths if len(paths) > 1 else [])]:
            place = _Place(number, path)
            factor = compared.fit_factor(plain, chain.run(place, _double))
            if factor is None:
                continue
            yield "scaled", place, factor, functools.partial(torch.mul, factor)
            for name, dtype in _TYPES:
                if any(find_dtype(function.floats[one].dtype) != dtype for one in paths):
                    yield name, place, 1.0, functools.partial(round_to, dtype=dtype)
        if function.multiplies:
            for bits in _BITS:
                yield "operands_%d" % bits, _Place(number), 1.0, None
                yield "operands_%d truncated" % bits, _Place(number), 1.0, None
        for name in FORMS.get(function.name, {}) if len(function.floats) == 1 else ():
            yield _FORM + name, _Place(number), 1.0, None


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

    def run(self, place: Optional[_Place] = None, change: Optional[_Change] = None) -> Tensors:
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

    def take_form(self, number: int, name: str) -> Tensors:
        """Return the same with another form of the backward of one function of one tensor."""
        function, ran = self.functions[number], self._ran[number]
        ((path, exact),) = self._left[number].items()
        ((index, gradient),) = self._arrived[number].items()
        values, output = widen(ran.inputs[path]), widen(ran.outputs[index]).detach()
        leaving = FORMS[function.name][name](values, output, gradient)
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


class _Compared(NamedTuple):
    """The gradients that changes are compared with: what the target recorded, by index, float64, and how large one counts.

    Attributes:
        target: As recorded, in float64.
        exact: In float64 at the target's own tensors.
        weights: 1 over the square of the norm of their absolute terms.
        own: Energy of the reference's own error.
    """

    target: Tensors
    exact: Tensors
    weights: Dict[str, float]
    own: float

    @classmethod
    def of(cls, reference: Side, target: Side) -> Optional[_Compared]:
        """Compare what both sides computed; ``None`` if some of it is no number, or too few elements are wrong."""
        indices = [index for index in target.exact.outputs if index in reference.exact.outputs]
        recorded = {index: widen(target.recorded[index]) for index in indices}
        exact = {index: target.exact.outputs[index] for index in indices}
        if not all(bool(torch.isfinite(each).all()) for each in (*recorded.values(), *exact.values())):
            return None
        weights, own, wrong = {}, 0.0, 0
        for index in indices:
            square = float(target.exact.terms[index].pow(2).sum())
            weights[index] = 1.0 / square if square > 0.0 else 0.0
            scale = float(reference.exact.terms[index].pow(2).sum())
            error = widen(reference.recorded[index]) - reference.exact.outputs[index]
            digits = torch.finfo(target.recorded[index].dtype).eps
            own += max(float(error.pow(2).sum()) / scale if scale > 0.0 else 0.0, (digits / 4) ** 2)
            wrong += int((recorded[index] != exact[index]).sum())
        return cls(recorded, exact, weights, own) if wrong >= _SEVERAL and any(weights.values()) else None

    def measure(self, changed: Tensors, plain: Tensors) -> Tuple[float, float]:
        """Return the share of the error that a changed chain explains beyond the plain one, and what it leaves."""
        if any(index not in changed or index not in plain for index in self.target):
            return 0.0, math.inf
        energy, rest = self._sum(plain), self._sum(changed)
        return (1.0 - rest / energy if energy > 0.0 else 0.0), math.sqrt(rest / self.own)

    def _sum(self, gradients: Tensors) -> float:
        return math.fsum(
            weight * float((self.target[index] - gradients[index]).pow(2).sum()) for index, weight in self.weights.items()
        )

    def fit_factor(self, plain: Tensors, doubled: Tensors) -> Optional[float]:
        """Return the factor of one part that explains most: gradients are linear in it, and here it counts twice.

        ``None`` if it reaches none of the gradients, or not all are known.
        """
        product = square = 0.0
        for index, weight in self.weights.items():
            if index not in plain or index not in doubled:
                return None
            part = doubled[index] - plain[index]
            product += weight * float((part * (self.target[index] - plain[index])).sum())
            square += weight * float(part.pow(2).sum())
        return 1.0 + product / square if square > 0.0 and math.isfinite(product) else None


def round_to(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values of a narrower type as float64: through float32, as a device has them before."""
    return values.float().to(dtype).double()


def cut(values: torch.Tensor, bits: int, *, truncate: bool = False) -> torch.Tensor:
    """Return values in float64 with so many explicit bits of the significand, rounded to nearest or towards zero.

    >>> cut(torch.tensor([1.0625, 3.0]), 3).tolist()
    [1.0, 3.0]
    """
    significand, exponent = torch.frexp(widen(values))
    scaled = torch.ldexp(significand, torch.tensor(bits + 1))
    return torch.ldexp(scaled.trunc() if truncate else scaled.round(), exponent - (bits + 1))

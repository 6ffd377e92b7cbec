"""What a hypothesis is given, and what it proposes: a call of the target that is wrong, and computations to try.

A hypothesis about a call is a module of ``of_call`` with a function and a constant::

    def propose(subject: Subject) -> Iterator[Candidate]:
        if subject.name == "relu":
            yield Candidate("not_bent", subject.give(subject.tensor(0, "input")))

    HYPOTHESIS = Hypothesis("variant", propose, says="hands on its input as it is")

Candidates are computed one after the other, while the work is within the limit of the engine. One that the call does not fit
raises ``CannotCompute``, or whatever torch makes of it.
"""

from __future__ import annotations

import functools
import math
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from precflow.agent.hypotheses.fit import Aim, round_results
from precflow.agent.hypotheses.residuals import Results, describe_residuals
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, RecordedCall, TensorFiles, parse_argument
from precflow.agent.replay.computation import (
    REFERENCE,
    TARGET,
    Computation,
    Line,
    SideValues,
    is_reproduced,
    join,
    measure_side,
    output_indices,
)
from precflow.agent.replay.partial_sums import add_partial_sums
from precflow.agent.replay.readings import widen

Tensors = Mapping[str, torch.Tensor]
Ways = Sequence[Tensors]
Change = Callable[[Tensors], Dict[str, torch.Tensor]]
_OF_ATEN = {"native_layer_norm": "layer_norm", "_softmax": "softmax", "_log_softmax": "log_softmax"}  # with the same arguments
_BY_MATRICES = frozenset("matmul mm bmm".split())
_MULTIPLICATIONS = 16  # of a product of matrices, that take as long as one element of another call


class Candidate(NamedTuple):
    """One computation to try.

    Attributes:
        name: What is done otherwise, as rules know it: ``gelu_tanh``.
        compute: Returns its results, once for each way to round (:class:`~precflow.agent.hypotheses.fit.Aim`).
        value: What else there is to say: the value of an argument, ``by 2``.
        argument: The argument that has another value; ``""`` for another change.
        recorded: What the call was given for it.
        is_fitted: A number of it was fitted to the target.
        facts: Where it is done otherwise, and by how much, of a backward.
        measure: Returns the lines of all outputs with it, as an evaluation has them; the judge then holds them to their lines.
    """

    name: str
    compute: Callable[[], Ways]
    value: str = ""
    argument: str = ""
    recorded: str = ""
    is_fitted: bool = False
    facts: Mapping[str, Any] = {}
    measure: Optional[Callable[[], List[Line]]] = None


class Hypothesis(NamedTuple):
    """One kind of change.

    Attributes:
        tells: The evidence that a fit is: ``variant``, ``operands``, ``argument`` or ``backward``.
        propose: Yields candidates, the likeliest first.
        says: What the operator does if a candidate fits, as a finding says it; ``""`` if a rule knows the candidates' names.
        runs: How many times the call runs before the first one is yielded.
    """

    tells: str
    propose: Callable[[Any], Iterator[Candidate]]
    says: str = ""
    runs: int = 0


class Subject:
    """A call of the target, and the right computation at its inputs.

    Args:
        call: The call, with the arguments of the reference.
        sides: The tensors of both sides.
        computation: Computes it in float64.
        files: Reads tensors.

    Attributes:
        call: The call.
        name: Canonical name of the torch function that it computes, also of an aten operator with the same arguments.
        side: What the target was given and returned, as it was recorded.
        inputs: What the target was given, floating point as float64.
        computation: Computes the call.
        exact: The right results in float64 at these inputs.
        aim: What hypotheses are measured against.
        work: Elements that one run of the call takes.

    Raises:
        CannotCompute: The call cannot be computed, or the reference computed something else.
    """

    def __init__(
        self, call: RecordedCall, sides: Mapping[str, SideValues], computation: Computation, files: TensorFiles
    ) -> None:
        self.call, self.computation, self.side = call, computation, sides[TARGET]
        self.name = _OF_ATEN.get(call.operator, call.operator).rstrip("_")
        self._sides, self._files, self._kind = sides, files, operators.kind_of(call)
        reference = computation.run(sides[REFERENCE])  # it chooses the reading
        self.exact = computation.run(self.side)
        self._exact_of_reference = reference
        self._own = measure_side(sides[REFERENCE], reference, self._kind, files)
        if any(line.get("eta") is not None and not is_reproduced(line) for line in self._own.values()):
            raise CannotCompute("float64 gives something else than the reference")
        self.inputs = {path: widen(tensor) for path, tensor in self.side.inputs.items()}
        sizes = {index: float(terms.square().sum()) for index, terms in self.exact.terms.items()}
        own = math.fsum(line["eta"] ** 2 for line in self._own.values() if line.get("eta") is not None)
        self.aim = Aim(self.side.outputs, self.round_ways(self.exact.outputs), sizes=sizes, own=own)
        tensors = sorted((each.numel() for each in (*self.side.inputs.values(), *self.side.outputs.values())), reverse=True)
        multiplied = math.sqrt(math.prod(tensors[:3])) if self._kind == operators.MATMUL else 0.0
        self.work = sum(tensors) + multiplied / _MULTIPLICATIONS

    # What it was given.

    def tensor(self, place: int, name: str) -> Optional[torch.Tensor]:
        """Return a tensor by its place or name, in float64 where it is floating point; ``None`` if the call has none."""
        return self.inputs.get(str(place), self.inputs.get(name))

    def path(self, place: int, name: str) -> Optional[str]:
        """Return the path of a tensor by its place or name; ``None`` if the call has none."""
        return next((path for path in (str(place), name) if path in self.inputs), None)

    def value(self, place: int, name: str, default: Any) -> Any:
        """Return an argument that is no tensor, by its name or place.

        Raises:
            CannotCompute: It cannot be read.
        """
        text = self.call.arguments.get(name, self.call.arguments.get(str(place)))
        return default if text is None else parse_argument(text)

    # What it returned.

    @functools.cached_property
    def index(self) -> str:
        """Path of the output that hypotheses about a function look at: its first one of floating point.

        Raises:
            CannotCompute: There is none that is computed again.
        """
        for index, output in self.side.outputs.items():
            right = self.exact.outputs.get(index)
            if output.is_floating_point() and right is not None and right.shape == output.shape:
                return index
        raise CannotCompute("no output of floating point is computed again")

    @property
    def made(self) -> torch.Tensor:
        """That output as the target returned it, in float64."""
        return widen(self.side.outputs[self.index])

    @property
    def right(self) -> torch.Tensor:
        """The same, as it had to be."""
        return self.exact.outputs[self.index]

    def matrices(self) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        """Return the operands of a product of matrices, the first by rows and the second by columns; ``None`` of another call.

        The gradient of a Linear layer's weight is one too: ``abo,abi->oi``, summed over the rows of all samples. Its result
        has the shape of ``left @ right``, as those of the others have.
        """
        if self.name == "linear":
            left, right = self.tensor(0, "input"), self.tensor(1, "weight")
            return None if left is None or right is None or right.dim() != 2 else (left, right.T)
        if self.name in _BY_MATRICES:
            left, right = self.tensor(0, "input"), self.tensor(1, "other" if self.name == "matmul" else "mat2")
            return None if left is None or right is None or right.dim() < 2 else (left, right)
        left, right = self.tensor(1, "1"), self.tensor(2, "2")
        if self.name != "einsum" or left is None or right is None or left.dim() != right.dim():
            return None
        rows = "abcdefgh"[: left.dim() - 1]
        if self.value(0, "equation", "") != "%so,%si->oi" % (rows, rows):
            return None
        return left.reshape(-1, left.shape[-1]).T, right.reshape(-1, right.shape[-1])

    # What is computed otherwise.

    def give(self, made: Union[torch.Tensor, Callable[[], torch.Tensor]]) -> Callable[[], Ways]:
        """Return how a candidate gives another output in place of that one; the other outputs are right."""

        def compute() -> Ways:
            """Return the results."""
            values = made if isinstance(made, torch.Tensor) else made()
            return self.round_ways({**self.exact.outputs, self.index: values})

        return compute

    def compute(self, inputs: Tensors = MappingProxyType({}), call: Optional[RecordedCall] = None) -> torch.Tensor:
        """Return that output in float64 with other inputs, by path, or of another call; the rest is as it was.

        Raises:
            CannotCompute: It does not run.
        """
        other = self.computation if call is None else self.computation.varied(call, operators.kind_of(call))
        return other.compute({**self.inputs, **inputs}, self.side.outputs)[self.index]

    def compute_without(self, *paths: str) -> torch.Tensor:
        """Return that output of the call without some of its tensors, as if they were ``None``.

        Raises:
            CannotCompute: It does not run.
        """
        call = self.call._replace(arguments={**self.call.arguments, **dict.fromkeys(paths, "None")})
        inputs = {path: tensor for path, tensor in self.inputs.items() if path not in paths}
        return self.computation.varied(call, self._kind).compute(inputs, self.side.outputs)[self.index]

    def round_ways(self, results: Tensors) -> Ways:
        """Return results in float64, and rounded to the types of the target's outputs."""
        return [results, round_results(results, self.side.outputs)]

    def measure_other(
        self, call: RecordedCall, *, change: Optional[Change] = None, compute: Optional[Change] = None
    ) -> List[Line]:
        """Return the lines of all outputs, measured against another call.

        Args:
            call: The other call.
            change: What it does to the inputs.
            compute: Computes its results from the inputs, where no call does.

        Raises:
            CannotCompute: It does not run.
        """
        kind = operators.kind_of(call)
        changed, target = self.computation.varied(call, kind), self.side
        inputs = {path: widen(tensor) for path, tensor in target.inputs.items()}
        if change is not None:
            target = target._replace(inputs=change(inputs))
        if compute is None:
            result = changed.run(target)
            run_in_parts: Callable[[], Dict[str, torch.Tensor]] = functools.partial(changed.run_in_parts, target)
        else:
            result, run_in_parts = self.exact._replace(outputs=compute(inputs)), _know_no_parts
        measured = measure_side(target, result, kind, self._files)
        add_partial_sums(self._own, measured, dict.fromkeys(measured, kind), result, run_in_parts)
        joined = self._kind if self._kind == kind else operators.OTHER
        both = {REFERENCE: self._own, TARGET: measured}
        return [join(call, index, joined, self._sides, both) for index in output_indices(call)]

    def describe_residuals(self) -> List[Line]:
        """Return the errors of both sides against float64, output by output."""
        exact = {REFERENCE: self._exact_of_reference, TARGET: self.exact}
        reference, target = (Results(self._sides[name].outputs, exact[name].outputs) for name in (REFERENCE, TARGET))
        return describe_residuals({index: (self.call.call, index) for index in self.side.outputs}, reference, target)


def _know_no_parts() -> Dict[str, torch.Tensor]:
    raise CannotCompute("what it sums over is not known")

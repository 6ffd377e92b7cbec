"""A call in float64 on the CPU: the tensors of both sides, what it gives at a side's inputs, and the numbers of its outputs."""

from __future__ import annotations

import functools
import math
import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.measure.content_id import content_id
from precflow.agent.replay import numbers, operators
from precflow.agent.replay.calls import MOST_BYTES, CannotCompute, RecordedCall, SideTensors, TensorFiles
from precflow.agent.replay.errors import Asked, measure_errors
from precflow.agent.replay.inner_terms import find_inner_terms
from precflow.agent.replay.partial_sums import add_in_parts, find_summed, split_operands
from precflow.agent.replay.readings import Exact, adapt, choose_tolerance, measure_distance, outputs_of, run_closest, widen

REFERENCE, TARGET = "reference", "target"
_REPRODUCED = 0.25  # a float64 result that is farther from what the reference computed is of another computation
# The same of a gradient, which may have come another way or been changed on it, and of a call that is to be explained.
_SAME_GRADIENT = 2.0**-7
_ROUNDINGS = 8  # of bfloat16, which is coarser than that
_FINE_DIGITS = 24  # float32 and float64

Line = Dict[str, Any]


@contextmanager
def float64_defaults() -> Iterator[None]:
    """Have new tensors in float64, and warnings of operators kept quiet, while a call is computed."""
    before = torch.get_default_dtype()
    if before == torch.float64:  # inside of such a block
        yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(before)


def output_indices(call: RecordedCall) -> List[str]:
    """Return the paths of a call's outputs on any side."""
    return list(dict.fromkeys(output.index for side in call.sides.values() for output in side.outputs))


def make_line(call: RecordedCall, index: str, kind: str, why: str, sides: Mapping[str, Any]) -> Line:
    """Return the line of an output; it says why there are no numbers, or has those of both sides."""
    return {"call": call.call, "index": index, "kind": kind, "evaluated": not why, "why": why, "sides": dict(sides)}


class SideValues(NamedTuple):
    """The tensors of one side by path, why outputs are missing, and the content ids of outputs as far as they are known."""

    inputs: Dict[str, torch.Tensor]
    outputs: Dict[str, torch.Tensor]
    missing: Dict[str, str]
    contents: Dict[str, str]


def read_side(tensors: SideTensors, files: TensorFiles) -> SideValues:
    """Read the tensors of one side.

    Raises:
        CannotCompute: An input is not there.
    """
    inputs: Dict[str, torch.Tensor] = {}
    for each in tensors.inputs:
        try:
            inputs[each.index] = files.read(each)
        except CannotCompute as error:  # noqa: PERF203  the message names the tensor
            raise CannotCompute("input %s" % error) from error
    outputs: Dict[str, torch.Tensor] = {}
    missing: Dict[str, str] = {}
    for each in tensors.outputs:
        try:
            outputs[each.index] = files.read(each)
        except CannotCompute as error:  # noqa: PERF203  the others are still evaluated
            missing[each.index] = "output %s" % error
    return SideValues(inputs, outputs, missing, {output.index: output.content for output in tensors.outputs})


def is_reproduced(own: Optional[Line]) -> bool:
    """Tell whether what the reference recorded is what comes out, from its numbers."""
    return own is not None and own.get("eta") is not None and own["eta"] <= max(_SAME_GRADIENT, _ROUNDINGS * own["unit"])


def measure_side(side: SideValues, exact: Exact, kind: str, files: TensorFiles) -> Dict[str, Line]:
    """Return the numbers of a side's outputs, of movement by their contents where they were not kept."""
    measured = {index: measure_output(output, exact, index) for index, output in side.outputs.items()}
    return {**measured, **(compare_contents(side, exact, files) if kind == operators.MOVEMENT else {})}


def join(
    call: RecordedCall, index: str, kind: str, sides: Mapping[str, SideValues], results: Mapping[str, Mapping[str, Line]]
) -> Line:
    """Return the line of one output from the numbers of the sides."""
    measured = {name: found[index] for name, found in results.items() if index in found}
    for name, side in sides.items():
        if name not in measured and index in side.missing:
            return make_line(call, index, kind, "%s on the %s" % (side.missing[index], name), {})
    failed = [line["why"] for line in measured.values() if "why" in line]
    if failed or len(measured) < len(sides):
        return make_line(call, index, kind, failed[0] if failed else "output %s is not on both sides" % index, {})
    reference = measured.get(REFERENCE)
    if reference is not None and reference["eta"] is not None and reference["eta"] > _REPRODUCED:
        why = "float64 gives something else than the reference (relative error %.2g)" % reference["eta"]
        return make_line(call, index, kind, why, measured)
    return make_line(call, index, kind, "", measured)


def measure_output(output: torch.Tensor, exact: Exact, index: str, asked: Optional[Asked] = None) -> Line:
    """Return the numbers of an output, with the errors that standards ask for, or ``why`` there are none."""
    result = exact.outputs.get(index)
    if result is None:
        return {"why": "output %s is not computed again" % index}
    if result.dtype not in (torch.float64, output.dtype) and result.is_floating_point() and output.is_floating_point():
        result = result.to(output.dtype)  # of movement: `full(..., dtype=torch.float32)` of a reference, on a float16 target
    try:
        # What rounding leaves is looked at where one rounding hides an error: in types of fewer digits than float32.
        terms, inner = exact.terms.get(index), exact.inner.get(index)
        measured = numbers.measure(output, result, terms, inner, residue=is_coarse(output))
    except ValueError as error:
        return {"why": "output %s: %s" % (index, error)}
    errors = measure_errors(output, result, asked or {})
    return {**measured, "errors": errors} if errors else measured


def is_coarse(output: torch.Tensor) -> bool:
    """Tell whether an output has fewer digits than float32."""
    return output.is_floating_point() and numbers.format_of(output.dtype).digits < _FINE_DIGITS


def compare_contents(side: SideValues, exact: Exact, files: TensorFiles) -> Dict[str, Line]:
    """Return the lines of moved outputs of which a dump has the content id alone; what agrees is kept for later calls."""
    lines: Dict[str, Line] = {}
    for index, result in exact.outputs.items():
        content = side.contents.get(index, "")
        if not content or (index in side.outputs and index not in side.missing):
            continue
        equal = content_id(result) == content
        if equal:
            files.remember(content, result)
        facts = numbers.measure(result, result)  # the error is 0, or not known where the output is not there
        lines[index] = {**facts, "equal": equal, "eta": facts["eta"] if equal else None}
    return lines


def check_size(call: RecordedCall) -> None:
    """Refuse a call whose tensors would not fit into memory in float64.

    Raises:
        CannotCompute: They would not.
    """
    largest = 0
    for side in call.sides.values():
        elements = sum(math.prod(stored.shape) for stored in (*side.inputs, *side.outputs))
        largest = max(largest, elements * 8 * (2 if operators.adds_terms(call) else 1))
    if largest > MOST_BYTES:
        raise CannotCompute("it would take %.1f GB in float64, more than %.0f GB" % (largest / 1e9, MOST_BYTES / 1e9))


def are_equal(these: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether two sides have the same inputs, so that one computation serves both."""
    return set(these) == set(others) and all(is_same(tensor, others[index]) for index, tensor in these.items())


def is_same(here: torch.Tensor, there: Optional[torch.Tensor]) -> bool:
    """Tell whether two tensors have the same type, shape and values; a NaN is no value."""
    return there is not None and here.dtype == there.dtype and here.shape == there.shape and torch.equal(here, there)


class Computation:
    """Computes a call in float64. The first side that it is given chooses how its name is read.

    Args:
        call: The call.
        kind: Its kind.
    """

    def __init__(self, call: RecordedCall, kind: str) -> None:
        self._call = call
        self._moves = kind == operators.MOVEMENT
        if "half_to_float" in call.arguments:  # a softmax from float16 to float32; here all is float64
            call = call._replace(arguments={**call.arguments, "half_to_float": "False"})
        self._readings: Sequence[operators.Reading]
        self._terms: Sequence[operators.Reading]
        arguments = tuple(call.arguments.items())
        self._readings, self._terms = _find_readings(
            call.level, call.operator, arguments, moves=self._moves, single=not _has_float64(call)
        )

    def varied(self, call: RecordedCall, kind: str) -> Computation:
        """Return the computation of the call with another argument, read in the way that was chosen for this one."""
        other = Computation(call, kind)
        chosen = [reading.name for reading in self._readings]
        other._readings = [reading for reading in other._readings if reading.name in chosen]
        return other

    def run(self, side: SideValues) -> Exact:
        """Return the results for a side's inputs.

        Raises:
            CannotCompute: No reading of the call runs.
        """
        # The reading that gives what was recorded is kept for the other side.
        tolerance = choose_tolerance(side.outputs)
        reading, outputs = run_closest(
            self._readings,
            lambda reading: outputs_of(reading.run(self._prepare(side.inputs))),
            lambda outputs: (measure_distance(outputs, side.outputs), tolerance),
            "no computation fits",
        )
        self._readings = [reading]
        inner: Dict[str, torch.Tensor] = {}
        if any(is_coarse(output) for output in side.outputs.values()):
            inner = find_inner_terms(self._call, self._prepare(side.inputs), outputs)
        return Exact(outputs, self._add_terms(side), inner)

    def compute(self, inputs: Mapping[str, torch.Tensor], recorded: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Return the results at other inputs, without sums of absolute terms.

        Args:
            inputs: By path.
            recorded: Outputs by which a reading is chosen, if there are several yet.

        Raises:
            CannotCompute: No reading of the call runs.
        """
        tolerance = choose_tolerance(recorded)
        return run_closest(
            self._readings,
            lambda reading: outputs_of(reading.run(self._prepare(inputs))),
            lambda outputs: (measure_distance(outputs, recorded), tolerance),
            "no computation fits",
        )[1]

    def run_in_parts(self, side: SideValues) -> Dict[str, torch.Tensor]:
        """Return the product of a side as a chip makes it that rounds its partial sums to the output's type.

        Raises:
            CannotCompute: What the operator sums over is not known.
        """
        ((index, output),) = side.outputs.items()
        inputs = self._prepare(side.inputs)
        summed = find_summed(self._call.operator, self._call.arguments, inputs)
        (reading,) = self._readings

        def compute(operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
            """Return the output with other operands; in copies, because an operator in place writes to what it is given."""
            return outputs_of(reading.run({**self._prepare(side.inputs), **operands}))[index]

        bias = compute({path: torch.zeros_like(inputs[path]) for path in summed})  # what is added to the product
        made = add_in_parts((compute(part) - bias for part in split_operands(inputs, summed)), output.dtype)
        return {index: numbers.round_once((made + bias).contiguous(), output.dtype)}

    def _add_terms(self, side: SideValues) -> Dict[str, torch.Tensor]:
        """Return the sums of absolute terms; empty if the operator is no sum, or none of the readings fits."""
        for reading in self._terms:
            try:
                outputs = outputs_of(reading.run(self._prepare(side.inputs)))
            except Exception:  # noqa: BLE001, S112  this reading does not fit the arguments; another may
                continue
            if all(index in outputs and outputs[index].shape == each.shape for index, each in side.outputs.items()):
                self._terms = [reading]
                return {index: tensor.abs() for index, tensor in outputs.items()}
        return {}

    def _prepare(self, inputs: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Return copies of the inputs: in float64, except for movement. An in-place operator writes to them."""
        if self._moves:  # in C order, because a view of a tensor that was moved again may be impossible in its strides
            return {index: tensor.clone(memory_format=torch.contiguous_format) for index, tensor in inputs.items()}
        return {index: widen(tensor) for index, tensor in inputs.items()}


@functools.lru_cache(maxsize=1024)  # a model repeats its calls, and torch is slow to ask for the parameters of its functions
def _find_readings(
    level: str, operator: str, arguments: Tuple[Tuple[str, str], ...], *, moves: bool, single: bool
) -> Tuple[Sequence[operators.Reading], Sequence[operators.Reading]]:
    """Return the ways to run a call, and those to add up its absolute terms.

    Raises:
        CannotCompute: There is none, or an argument cannot be read.
    """
    call = RecordedCall("", level, operator, "", "", dict(arguments), {})
    change = _keep if moves else functools.partial(adapt, single=single)
    readings = operators.find_readings(call, adapt=change)
    return readings, [] if moves else operators.find_term_readings(call, change)


def _keep(value: Any) -> Any:
    return value


def _has_float64(call: RecordedCall) -> bool:
    tensors = (tensor for side in call.sides.values() for tensor in (*side.inputs, *side.outputs))
    return any(tensor.dtype in ("float64", "complex128") for tensor in tensors)

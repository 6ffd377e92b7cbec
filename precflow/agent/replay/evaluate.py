"""Action ``evaluate``: compute recorded operator calls again in float64 on the CPU, and measure what each side was off by.

It reads ``calls.jsonl`` in the output folder (:mod:`~precflow.agent.replay.calls`) and writes ``evaluated.jsonl`` beside it, a
line for each output of each call::

    {"call": "...", "index": "0", "kind": "matmul", "evaluated": true, "why": "",
     "sides": {"reference": {...}, "target": {...}}}

A call that cannot be computed has ``evaluated`` false and says why; it never ends the action. The numbers of a side are
explained in :mod:`~precflow.agent.replay.numbers`. Arguments are those of the reference on both sides: a target that was called
with another ``eps`` is off by what that does.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.capture.nesting import output_tensors
from precflow.agent.contract import CALLS_FILE, EVALUATED_FILE, LARGEST
from precflow.agent.dump.write_errors import write_error
from precflow.agent.measure.content_id import content_id
from precflow.agent.replay import numbers, operators
from precflow.agent.replay.calls import CannotCompute, RecordedCall, SideTensors, TensorFiles, read_calls
from precflow.agent.replay.errors import Asked, measure_errors, read_asked

if TYPE_CHECKING:
    from precflow.agent.events import Events
    from precflow.agent.request import Request

REFERENCE = "reference"
MOST_BYTES = 8 << 30  # float64 tensors of one call, estimated; a larger call is left out
_REPRODUCED = 0.25  # a float64 result that is farther from what the reference computed is of another computation
_FINE_DIGITS = 24  # float32 and float64
_EVERY = 2.0  # seconds between two reports of progress

Line = Dict[str, Any]


def evaluate(request: Request, events: Events) -> None:
    """Evaluate every call of the request's folder and write the results.

    Raises:
        AgentError: ``calls.jsonl`` cannot be read, or the results cannot be written.
    """
    files = TensorFiles()
    with events.time_part("evaluate", "computing recorded operators in float64"):
        asked = read_asked(request.output)
        count = write_results(request.output, EVALUATED_FILE, lambda call: evaluate_call(call, files, asked), events)
    events.report_progress("evaluate", "%d calls" % count)


def write_results(folder: str, name: str, compute: Callable[[RecordedCall], List[Line]], events: Events) -> int:
    """Write what is computed of each call of a folder, a line for each output; return the number of calls.

    Args:
        folder: Has ``calls.jsonl``.
        name: Of the file to write; it appears when it is complete.
        compute: Returns the lines of a call.
        events: Gets progress.

    Raises:
        AgentError: The calls cannot be read, or the results cannot be written.
    """
    count, last = 0, time.monotonic()
    path = os.path.join(folder, name)
    try:
        with open(os.path.join(folder, CALLS_FILE), "rb") as calls:
            total = sum(1 for _ in calls)
        with open(path + ".part", "w", encoding="utf-8") as stream:
            for call in read_calls(os.path.join(folder, CALLS_FILE)):
                stream.writelines(json.dumps(line) + "\n" for line in compute(call))
                count += 1
                events.report_amount(count, total, "calls")
                if time.monotonic() - last > _EVERY:
                    events.report_progress("calls", "%d calls, now %s" % (count, call.call))
                    last = time.monotonic()
        os.replace(path + ".part", path)
    except OSError as error:
        raise write_error(error, folder, 0) from error
    return count


def evaluate_call(call: RecordedCall, files: TensorFiles, asked: Optional[Asked] = None) -> List[Line]:
    """Return a line for each output of a call; never raises because of what the call is.

    Args:
        call: The call.
        files: Where tensors are read from.
        asked: Errors of standards to measure too; they stand under ``errors`` of each side.
    """
    kind = operators.kind_of(call)
    try:
        with float64_defaults(), torch.no_grad():
            return _evaluate(call, kind, files, asked or {})
    except CannotCompute as error:
        why = str(error)
    except MemoryError:
        why = "the memory is not enough"
    except Exception as error:  # noqa: BLE001  a call is data: whatever torch makes of it, the others are still evaluated
        why = "%s: %s" % (type(error).__name__, str(error).partition("\n")[0][:200])
    return [_line(call, index, kind, why, {}) for index in output_indices(call)]


@contextmanager
def float64_defaults() -> Iterator[None]:
    """Have new tensors in float64, and warnings of operators kept quiet, while a call is computed."""
    before = torch.get_default_dtype()
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


def _line(call: RecordedCall, index: str, kind: str, why: str, sides: Mapping[str, Any]) -> Line:
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


def _evaluate(call: RecordedCall, kind: str, files: TensorFiles, asked: Asked) -> List[Line]:
    if kind == operators.RANDOM:
        raise CannotCompute("it draws random numbers, which were not recorded")
    check_size(call)
    sides = {name: read_side(tensors, files) for name, tensors in call.sides.items()}
    order = sorted(sides, key=lambda name: name != REFERENCE)  # the reference chooses the reading
    computation = Computation(call, kind)
    results: Dict[str, Dict[str, Line]] = {}
    exact: Optional[Exact] = None
    for position, name in enumerate(order):
        side = sides[name]
        if exact is None or not _are_equal(side.inputs, sides[order[position - 1]].inputs):
            exact = computation.run(side)
        results[name] = {index: measure_output(output, exact, index, asked) for index, output in side.outputs.items()}
        if kind == operators.MOVEMENT:
            results[name].update(_compare_contents(side, exact, files))
    return [_join(call, index, kind, sides, results) for index in output_indices(call)]


def _join(
    call: RecordedCall, index: str, kind: str, sides: Mapping[str, SideValues], results: Mapping[str, Mapping[str, Line]]
) -> Line:
    """Return the line of one output from the numbers of the sides."""
    measured = {name: found[index] for name, found in results.items() if index in found}
    for name, side in sides.items():
        if name not in measured and index in side.missing:
            return _line(call, index, kind, "%s on the %s" % (side.missing[index], name), {})
    failed = [line["why"] for line in measured.values() if "why" in line]
    if failed or len(measured) < len(sides):
        return _line(call, index, kind, failed[0] if failed else "output %s is not on both sides" % index, {})
    reference = measured.get(REFERENCE)
    if reference is not None and reference["eta"] is not None and reference["eta"] > _REPRODUCED:
        why = "float64 gives something else than the reference (relative error %.2g)" % reference["eta"]
        return _line(call, index, kind, why, measured)
    return _line(call, index, kind, "", measured)


def measure_output(output: torch.Tensor, exact: Exact, index: str, asked: Optional[Asked] = None) -> Line:
    """Return the numbers of an output, with the errors that standards ask for, or ``why`` there are none."""
    result = exact.outputs.get(index)
    if result is None:
        return {"why": "output %s is not computed again" % index}
    if result.dtype not in (torch.float64, output.dtype) and result.is_floating_point() and output.is_floating_point():
        result = result.to(output.dtype)  # of movement: `full(..., dtype=torch.float32)` of a reference, on a float16 target
    try:
        # What rounding leaves is looked at where one rounding hides an error: in types of fewer digits than float32.
        is_coarse = output.is_floating_point() and numbers.format_of(output.dtype).digits < _FINE_DIGITS
        measured = numbers.measure(output, result, exact.terms.get(index), residue=is_coarse)
    except ValueError as error:
        return {"why": "output %s: %s" % (index, error)}
    errors = measure_errors(output, result, asked or {})
    return {**measured, "errors": errors} if errors else measured


def _compare_contents(side: SideValues, exact: Exact, files: TensorFiles) -> Dict[str, Line]:
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


def _are_equal(these: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether two sides have the same inputs, so that one computation serves both."""
    if set(these) != set(others):
        return False
    pairs = [(tensor, others[index]) for index, tensor in these.items()]
    return all(here.dtype == there.dtype and here.shape == there.shape and torch.equal(here, there) for here, there in pairs)


class Exact(NamedTuple):
    """float64 results by output path, and the sums of absolute terms where the operator adds up."""

    outputs: Dict[str, torch.Tensor]
    terms: Dict[str, torch.Tensor]


class Computation:
    """Computes a call in float64. The first side that it is given chooses how its name is read.

    Args:
        call: The call.
        kind: Its kind.
    """

    def __init__(self, call: RecordedCall, kind: str) -> None:
        self._moves = kind == operators.MOVEMENT
        if "half_to_float" in call.arguments:  # a softmax from float16 to float32; here all is float64
            call = call._replace(arguments={**call.arguments, "half_to_float": "False"})
        adapt = _keep if self._moves else functools.partial(_adapt, single=not _has_float64(call))
        self._readings = operators.find_readings(call, adapt=adapt)
        self._terms: Sequence[operators.Reading] = [] if self._moves else operators.find_term_readings(call, adapt)

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
        return Exact(outputs, self._add_terms(side))

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
        return {index: _widen(tensor) for index, tensor in inputs.items()}


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64, complex128, or the tensor's own type if that is no floating point type."""
    if tensor.is_complex():
        return tensor.to(torch.complex128, copy=True)
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _keep(value: Any) -> Any:
    return value


def _has_float64(call: RecordedCall) -> bool:
    tensors = (tensor for side in call.sides.values() for tensor in (*side.inputs, *side.outputs))
    return any(tensor.dtype in ("float64", "complex128") for tensor in tensors)


def _adapt(value: Any, *, single: bool) -> Any:
    """Return an argument as the evaluation needs it.

    Floating point types become float64, complex ones complex128. A number such as 0.1 is rounded to float32, as every operator
    on smaller types does before it computes.
    """
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value
    if single and isinstance(value, float) and abs(value) <= LARGEST["float32"]:
        return torch.tensor(value, dtype=torch.float32).item()
    return value


def outputs_of(result: Any) -> Dict[str, torch.Tensor]:
    """Return the tensors of what an operator returned, by path.

    Raises:
        TypeError: It returned nothing.
    """
    if result is None:
        raise TypeError("it returns nothing")
    return dict(output_tensors(result))


def run_closest(
    readings: Sequence[operators.Reading],
    run: Callable[[operators.Reading], Dict[str, torch.Tensor]],
    compare: Callable[[Dict[str, torch.Tensor]], Tuple[float, float]],
    failure: str,
) -> Tuple[operators.Reading, Dict[str, torch.Tensor]]:
    """Return the first reading of a call that gives what is expected, or the one closest to it, and its outputs by path.

    Args:
        readings: The likeliest first.
        run: Runs one and returns its outputs by path.
        compare: Takes outputs; returns how far they are from what is expected, and how far is near enough.
        failure: Said where none of them runs.

    Raises:
        CannotCompute: None of them runs; the message has the problem of the likeliest.
    """
    closest: Optional[Tuple[operators.Reading, Dict[str, torch.Tensor]]] = None
    least, problem = math.inf, ""
    for reading in readings:
        try:
            outputs = run(reading)
        except CannotCompute:
            raise
        except Exception as error:  # noqa: BLE001  this reading does not fit the arguments; another may
            problem = problem or "%s: %s" % (reading.name, str(error).partition("\n")[0][:160])
            continue
        distance, tolerance = compare(outputs)
        if closest is None or distance < least:
            least, closest = distance, (reading, outputs)
        if distance <= tolerance:
            break
    if closest is None:
        raise CannotCompute("%s: %s" % (failure, problem or "there is none"))
    return closest


def measure_distance(outputs: Mapping[str, torch.Tensor], recorded: Mapping[str, torch.Tensor]) -> float:
    """Return how far a computation is from what was recorded: the largest relative error; infinite if it has another shape."""
    largest = 0.0
    for index, tensor in recorded.items():
        result = outputs.get(index)
        if result is None:
            continue
        if result.shape != tensor.shape:
            return math.inf
        if not tensor.numel():
            continue
        difference, size = (
            torch.nan_to_num(_as_double(each)).norm() for each in (_as_double(tensor) - _as_double(result), result)
        )
        largest = max(largest, float(difference) / (float(size) or 1.0))
    return largest


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)


def choose_tolerance(recorded: Mapping[str, torch.Tensor]) -> float:
    """Return the distance below which a reading is taken at once: far above rounding, far below another computation."""
    units = [torch.finfo(tensor.dtype).eps for tensor in recorded.values() if tensor.is_floating_point() or tensor.is_complex()]
    return 256 * max([float(unit) for unit in units if unit > 1e-10] or [1e-9])

"""Action ``evaluate``: compute recorded operator calls again in float64 on the CPU, and measure what each side was off by.

It reads ``calls.jsonl`` in the output folder (:mod:`~precflow.agent.replay.calls`) and writes ``evaluated.jsonl`` beside it, a
line for each output of each call::

    {"call": "...", "index": "0", "kind": "matmul", "evaluated": true, "why": "",
     "sides": {"reference": {...}, "target": {...}}}

A call that cannot be computed has ``evaluated`` false and says why; it never ends the action. The numbers of a side are
explained in :mod:`~precflow.agent.replay.numbers`. Arguments are those of the reference on both sides: a target that was called
with another ``eps`` is off by what that does. A backward whose errors are to be explained has a line of its own::

    {"call": "...", "results": ["..."], "alternatives": [{"kind": "bfloat16", "operator": "softmax", "share": 0.99, ...}]}

So has a call whose error is to be explained by another value of an argument. ``outputs`` are lines as above, with the target's
numbers against float64 with that value::

    {"call": "...", "others": [{"argument": "mode", "recorded": "'bilinear'", "value": "'nearest'", "share": 1.0,
     "places": 512, "outputs": [{...}]}]}
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import torch

from precflow.agent.contract import CALLS_FILE, EVALUATED_FILE
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import content_id
from precflow.agent.replay import alternatives, numbers, operators
from precflow.agent.replay.calls import (
    MOST_BYTES,
    CannotCompute,
    GradientGraph,
    RecordedCall,
    SideTensors,
    TensorFiles,
    is_out_of_memory,
    read_calls,
)
from precflow.agent.replay.errors import Asked, measure_errors, read_asked
from precflow.agent.replay.explained import explain
from precflow.agent.replay.gradients import GradientComputation
from precflow.agent.replay.inner_terms import find_inner_terms
from precflow.agent.replay.other_arguments import Other, list_others
from precflow.agent.replay.other_forms import count_bits, find_other_form
from precflow.agent.replay.other_numbers import fit_others
from precflow.agent.replay.partial_sums import add_in_parts, add_partial_sums, find_summed, split_operands
from precflow.agent.replay.readings import Exact, adapt, choose_tolerance, measure_distance, outputs_of, run_closest, widen

if TYPE_CHECKING:
    from precflow.agent.events import Events
    from precflow.agent.request import Request

REFERENCE, TARGET = "reference", "target"
_REPRODUCED = 0.25  # a float64 result that is farther from what the reference computed is of another computation
# The same of a gradient: autograd may have taken a way that no function shows, or something changed it on its way.
_SAME_GRADIENT = 2.0**-7
_ROUNDINGS = 8  # of bfloat16, which is coarser than that
_FINE_DIGITS = 24  # float32 and float64
_EXPLAINED = 0.99  # from which on no number is fitted in place of a value that was tried
_EXPLAINS = 0.5  # share of the target's error from which on another value is worth a line
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

    Raises:
        AgentError: ``memory``: a call of a size that is evaluated does not fit into memory. That says nothing of the call.
    """
    kind = operators.kind_of(call)
    try:
        with float64_defaults(), torch.no_grad():
            if call.gradients is not None and call.gradients.explain:
                return [_explain_gradients(call, call.gradients, files)]
            if call.gradients is not None:
                return _evaluate_gradients(call, call.gradients, files, asked or {})
            if call.vary:
                return [_try_other_values(call, kind, files)]
            return _evaluate(call, kind, files, asked or {})
    except CannotCompute as error:
        why = str(error)
    except Exception as error:
        if is_out_of_memory(error):
            message = "the memory is not enough to compute %s in float64" % call.call
            raise AgentError("memory", message, "end other programs, or keep less of the model: capture.scope") from error
        # A call is data: whatever torch makes of it, the others are still evaluated.
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
        kinds = dict.fromkeys(results[name], kind)
        own = results.get(REFERENCE, {})
        add_partial_sums(own, results[name], kinds, exact, functools.partial(computation.run_in_parts, side))
        _add_other_form(call, results[name], side, exact, computation)
        if kind == operators.MOVEMENT:
            results[name].update(_compare_contents(side, exact, files))
    return [_join(call, index, kind, sides, results) for index in output_indices(call)]


def _add_other_form(
    call: RecordedCall, measured: Mapping[str, Line], side: SideValues, exact: Exact, computation: Computation
) -> None:
    """Add to the numbers of outputs how many of their elements have the bits of the function's other form."""
    other = find_other_form(call)
    is_coarse = any(_is_coarse(output) for output in side.outputs.values())
    if other is None or not is_coarse:
        return
    try:
        results = computation.varied(other, operators.OTHER).run(side).outputs
    except CannotCompute:  # a function of this name that has one form only
        return
    for index, output in side.outputs.items():
        if "why" not in measured[index] and index in results:
            measured[index]["other_form"] = count_bits(output, exact.outputs[index], results[index])


def _evaluate_gradients(call: RecordedCall, graph: GradientGraph, files: TensorFiles, asked: Asked) -> List[Line]:
    """Return a line for each gradient that can be computed again; the reference's has to be reproduced."""
    check_size(call)
    computation = GradientComputation(graph)
    sides: Dict[str, Dict[str, Line]] = {}
    for name in sorted(call.sides, key=lambda name: name != REFERENCE):
        side = read_side(call.sides[name], files)
        exact = computation.run(side.inputs, side.outputs)
        sides[name] = {index: measure_output(side.outputs[index], exact, index, asked) for index in exact.outputs}
        if name != REFERENCE:  # the target is judged by the reference's own error, which must not shrink
            _allow_saved_statistics(sides[name], side, exact, computation, asked)
        in_parts = functools.partial(computation.run_in_parts, side.inputs, side.outputs)
        add_partial_sums(sides.get(REFERENCE, {}), sides[name], computation.kinds, exact, in_parts)
    lines = []
    for result in graph.results:
        measured = {name: found[result.index] for name, found in sides.items() if result.index in found}
        if len(measured) < len(sides) or any("why" in each for each in measured.values()):
            continue
        if _is_reproduced(measured.get(REFERENCE)):
            kind = computation.kinds[result.index]
            lines.append(_line(call._replace(call=result.call), result.named, kind, "", measured))
    return lines


def _allow_saved_statistics(
    measured: Dict[str, Line], side: SideValues, exact: Exact, computation: GradientComputation, asked: Asked
) -> None:
    """Measure gradients against those of norms that keep statistics in 16 bits, where these are nearer: both are correct."""
    saved = computation.run_with_saved_statistics(side.inputs, side.outputs)
    if saved is None:
        return
    for index in saved.outputs:
        other = measure_output(side.outputs[index], saved, index, asked)
        if _find_error(other) < _find_error(measured.get(index, {})):
            measured[index] = other
            exact.outputs[index], exact.terms[index] = saved.outputs[index], saved.terms[index]


def _find_error(measured: Mapping[str, Any]) -> float:
    """Return the error of an output, infinite where none was measured."""
    eta = measured.get("eta")
    return math.inf if eta is None or math.isnan(eta) else float(eta)


def _is_reproduced(own: Optional[Line]) -> bool:
    """Tell whether a gradient of the reference is the one that comes out, from its numbers."""
    return own is not None and own.get("eta") is not None and own["eta"] <= max(_SAME_GRADIENT, _ROUNDINGS * own["unit"])


def _explain_gradients(call: RecordedCall, graph: GradientGraph, files: TensorFiles) -> Line:
    """Return what explains the target's gradients of a call, by those that the reference's own reproduce."""
    check_size(call)
    computation = GradientComputation(graph)
    sides: List[alternatives.Side] = []
    for name in sorted(call.sides, key=lambda name: name != REFERENCE):
        side = read_side(call.sides[name], files)
        sides.append(alternatives.Side(side.inputs, side.outputs, computation.run(side.inputs, side.outputs)))
    reference, target = sides
    outputs = {
        index: exact
        for index, exact in reference.exact.outputs.items()
        if _is_reproduced(measure_output(reference.recorded[index], reference.exact, index))
    }
    reference = reference._replace(exact=reference.exact._replace(outputs=outputs))
    found = alternatives.find_alternatives(graph, computation, reference, target)
    return {"call": call.call, "results": sorted({each.call for each in graph.results}), "alternatives": found}


def _try_other_values(call: RecordedCall, kind: str, files: TensorFiles) -> Line:
    """Return which other values of an argument explain most of the target's error, and the numbers of all outputs with each."""
    if kind == operators.RANDOM:
        raise CannotCompute("it draws random numbers, which were not recorded")
    check_size(call)
    sides = {name: read_side(call.sides[name], files) for name in (REFERENCE, TARGET)}
    computation = Computation(call, kind)
    own = _measure_side(sides[REFERENCE], computation.run(sides[REFERENCE]), kind, files)  # it chooses the reading
    exact = computation.run(sides[TARGET])
    try_value = functools.partial(
        _try_other_value, kind=kind, computation=computation, sides=sides, exact=exact, own=own, files=files
    )
    others: List[Line] = []
    inputs = {path: widen(tensor) for path, tensor in sides[TARGET].inputs.items()}

    def run_other(other: RecordedCall) -> Dict[str, torch.Tensor]:
        """Return the results of the call with another number."""
        return computation.varied(other, operators.kind_of(other)).run(sides[TARGET]).outputs

    for other in itertools.chain(list_others(call), fit_others(call, inputs, sides[TARGET].outputs, run_other)):
        explained = any(line["argument"] == other.argument and line["share"] > _EXPLAINED for line in others)
        if other.is_fitted and explained:
            continue
        try:
            line = try_value(other)
        except Exception:  # noqa: BLE001, S112  torch refuses this value here; another may fit
            continue
        if line is not None:
            others.append(line)
    return {"call": call.call, "others": others}


def _try_other_value(  # noqa: PLR0913  the call as it is, and what was measured of it
    other: Other,
    *,
    kind: str,
    computation: Computation,
    sides: Mapping[str, SideValues],
    exact: Exact,
    own: Mapping[str, Line],
    files: TensorFiles,
) -> Optional[Line]:
    """Return the line of one other value; ``None`` if it does not explain most of the target's error."""
    target = sides[TARGET]
    if other.change is not None:
        target = target._replace(inputs=other.change({path: widen(tensor) for path, tensor in target.inputs.items()}))
    other_kind = operators.kind_of(other.call)
    changed = computation.varied(other.call, other_kind)
    if other.compute is None:
        result = changed.run(target)
        run_in_parts: Callable[[], Dict[str, torch.Tensor]] = functools.partial(changed.run_in_parts, target)
    else:
        result = exact._replace(outputs=other.compute({path: widen(tensor) for path, tensor in target.inputs.items()}))
        run_in_parts = _know_no_parts
    explained = [
        explain(output, exact.outputs.get(index), result.outputs.get(index)) for index, output in target.outputs.items()
    ]
    differing = [one for one in explained if one is not None]
    if (target.outputs and not differing) or any(one.share < _EXPLAINS for one in differing):
        return None
    measured = _measure_side(target, result, other_kind, files)
    add_partial_sums(own, measured, dict.fromkeys(measured, other_kind), result, run_in_parts)
    kind = kind if kind == other_kind else operators.OTHER
    return {
        "argument": other.argument,
        "recorded": other.recorded,
        "value": other.value,
        "share": min([one.share for one in differing], default=1.0),  # of movement the bits say it
        "places": sum(one.places for one in differing) if differing else _count_elements(result),
        "outputs": [
            _join(other.call, index, kind, sides, {REFERENCE: own, TARGET: measured}) for index in output_indices(other.call)
        ],
    }


def _know_no_parts() -> Dict[str, torch.Tensor]:
    raise CannotCompute("what it sums over is not known")


def _count_elements(exact: Exact) -> int:
    return sum(tensor.numel() for tensor in exact.outputs.values())


def _measure_side(side: SideValues, exact: Exact, kind: str, files: TensorFiles) -> Dict[str, Line]:
    """Return the numbers of a side's outputs, of movement by their contents where they were not kept."""
    measured = {index: measure_output(output, exact, index) for index, output in side.outputs.items()}
    return {**measured, **(_compare_contents(side, exact, files) if kind == operators.MOVEMENT else {})}


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
        terms, inner = exact.terms.get(index), exact.inner.get(index)
        measured = numbers.measure(output, result, terms, inner, residue=_is_coarse(output))
    except ValueError as error:
        return {"why": "output %s: %s" % (index, error)}
    errors = measure_errors(output, result, asked or {})
    return {**measured, "errors": errors} if errors else measured


def _is_coarse(output: torch.Tensor) -> bool:
    return output.is_floating_point() and numbers.format_of(output.dtype).digits < _FINE_DIGITS


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
        change = _keep if self._moves else functools.partial(adapt, single=not _has_float64(call))
        self._readings = operators.find_readings(call, adapt=change)
        self._terms: Sequence[operators.Reading] = [] if self._moves else operators.find_term_readings(call, change)

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
        if any(_is_coarse(output) for output in side.outputs.values()):
            inner = find_inner_terms(self._call, self._prepare(side.inputs), outputs)
        return Exact(outputs, self._add_terms(side), inner)

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


def _keep(value: Any) -> Any:
    return value


def _has_float64(call: RecordedCall) -> bool:
    tensors = (tensor for side in call.sides.values() for tensor in (*side.inputs, *side.outputs))
    return any(tensor.dtype in ("float64", "complex128") for tensor in tensors)

"""Action ``evaluate``: compute recorded operator calls again in float64 on the CPU, and measure what each side was off by.

It reads ``calls.jsonl`` in the output folder (:mod:`~precflow.agent.replay.calls`) and writes ``evaluated.jsonl`` beside it, a
line for each output of each call::

    {"call": "...", "index": "0", "kind": "matmul", "evaluated": true, "why": "",
     "sides": {"reference": {...}, "target": {...}}}

A call that cannot be computed has ``evaluated`` false and says why; it never ends the action. The numbers of a side are
explained in :mod:`~precflow.agent.replay.numbers`. Arguments are those of the reference on both sides: a target that was called
with another ``eps`` is off by what that does. A call whose error is to be explained has one line, which says what it would be
right with (:mod:`~precflow.agent.hypotheses.engine`).
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

import torch

from precflow.agent.contract import CALLS_FILE, EVALUATED_FILE
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.hypotheses import engine
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, GradientGraph, RecordedCall, TensorFiles, is_out_of_memory, read_calls
from precflow.agent.replay.computation import (
    REFERENCE,
    Computation,
    Line,
    SideValues,
    are_equal,
    check_size,
    compare_contents,
    float64_defaults,
    is_coarse,
    is_reproduced,
    is_same,
    join,
    make_line,
    measure_output,
    output_indices,
    read_side,
)
from precflow.agent.replay.errors import Asked, read_asked
from precflow.agent.replay.gradients import GradientComputation
from precflow.agent.replay.other_forms import count_bits, find_other_form
from precflow.agent.replay.partial_sums import add_partial_sums
from precflow.agent.replay.readings import Exact

if TYPE_CHECKING:
    from precflow.agent.events import Events
    from precflow.agent.request import Request

_EVERY = 2.0  # seconds between two reports of progress


def evaluate(request: Request, events: Events) -> None:
    """Evaluate every call of the request's folder and write the results.

    Raises:
        AgentError: ``calls.jsonl`` cannot be read, or the results cannot be written.
    """
    files = TensorFiles()
    with events.time_part("evaluate", "computing recorded operators in float64"):
        asked = read_asked(request.output)
        with float64_defaults():  # once for all calls
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
            if call.explain:
                return [engine.explain(call, files)]
            if call.gradients is not None:
                return _evaluate_gradients(call, call.gradients, files, asked or {})
            return _evaluate(call, kind, files, asked or {})
    except CannotCompute as error:
        why = str(error)
    except Exception as error:
        if is_out_of_memory(error):
            message = "the memory is not enough to compute %s in float64" % call.call
            raise AgentError("memory", message, "end other programs, or keep less of the model: capture.scope") from error
        # A call is data: whatever torch makes of it, the others are still evaluated.
        why = "%s: %s" % (type(error).__name__, str(error).partition("\n")[0][:200])
    return [make_line(call, index, kind, why, {}) for index in output_indices(call)]


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
        before = sides[order[position - 1]]
        known: Dict[str, Line] = {}
        if exact is None or not are_equal(side.inputs, before.inputs):
            exact = computation.run(side)
        else:  # what is equal too is off by as much
            known = {
                index: dict(line)
                for index, line in results[order[position - 1]].items()
                if index in side.outputs and is_same(side.outputs[index], before.outputs.get(index))
            }
        results[name] = {
            index: known.get(index) or measure_output(output, exact, index, asked) for index, output in side.outputs.items()
        }
        if name != REFERENCE:
            _allow_rounded_number(results[name], side, computation, asked)
        kinds = dict.fromkeys(results[name], kind)
        own = results.get(REFERENCE, {})
        add_partial_sums(own, results[name], kinds, exact, functools.partial(computation.run_in_parts, side))
        _add_other_form(call, results[name], side, exact, computation)
        if kind == operators.MOVEMENT:
            results[name].update(compare_contents(side, exact, files))
    return [join(call, index, kind, sides, results) for index in output_indices(call)]


def _allow_rounded_number(measured: Dict[str, Line], side: SideValues, computation: Computation, asked: Asked) -> None:
    """Measure outputs against those of a number that was rounded to the output's type first, where these are nearer.

    A tensor without axes (a scheduler's alpha) does not widen the type of an elementwise operator. Some backends take it as it
    is, others round it to the type of the other operand before: both are correct.
    """
    types = [output.dtype for output in side.outputs.values() if output.is_floating_point() and output.dim()]
    if not types:
        return
    coarse = min(types, key=lambda dtype: torch.finfo(dtype).bits)
    rounded = {
        index: value.to(coarse).to(value.dtype)
        for index, value in side.inputs.items()
        if not value.dim() and value.is_floating_point() and torch.finfo(value.dtype).bits > torch.finfo(coarse).bits
    }
    if not any(not torch.equal(value, side.inputs[index]) for index, value in rounded.items()):
        return
    other = computation.run(side._replace(inputs={**side.inputs, **rounded}))
    for index, output in side.outputs.items():
        nearer = measure_output(output, other, index, asked)
        if _find_error(nearer) < _find_error(measured.get(index, {})):
            measured[index] = nearer


def _add_other_form(
    call: RecordedCall, measured: Mapping[str, Line], side: SideValues, exact: Exact, computation: Computation
) -> None:
    """Add to the numbers of outputs how many of their elements have the bits of the function's other form."""
    other = find_other_form(call)
    if other is None or not any(map(is_coarse, side.outputs.values())):
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
        if is_reproduced(measured.get(REFERENCE)):
            kind = computation.kinds[result.index]
            lines.append(make_line(call._replace(call=result.call), result.named, kind, "", measured))
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

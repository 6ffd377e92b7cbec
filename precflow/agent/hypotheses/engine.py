"""Tries every hypothesis about a call that is wrong, and says which computations give what the target gave.

Hypotheses are modules of ``of_call`` and ``of_backward`` with a constant ``HYPOTHESIS``; nothing else knows their names. A line
of ``calls.jsonl`` with ``"explain": true`` asks for them; what comes out is one line of ``evaluated.jsonl``::

    {"call": "...", "results": ["..."], "tried": ["variant", "operands"], "left_out": [],
     "found": [{"tells": "variant", "name": "gelu_tanh", "share": 0.99, "sure": 0.99, "left": 1.2, "places": 512, ...}],
     "residuals": [{"call": "...", "index": "0", "elements": 512, "shares": [0.02, ...], "own": [...], "found": [...]}]}

``found`` has the computations that explain at least half of the target's error, the best first. ``left_out`` has the
hypotheses for which the call was too large. ``residuals`` has the errors of both sides
(:mod:`~precflow.agent.hypotheses.residuals`). A hypothesis that cannot compute a call, or that torch refuses, says nothing of
the others.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from types import ModuleType
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple, Union

from precflow.agent.hypotheses import fit, of_backward, of_call
from precflow.agent.hypotheses.backward import Backward, Side
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, GradientGraph, RecordedCall, TensorFiles, is_out_of_memory
from precflow.agent.replay.computation import (
    REFERENCE,
    TARGET,
    Computation,
    is_reproduced,
    measure_output,
    read_side,
)
from precflow.agent.replay.gradients import GradientComputation

MOST_ELEMENTS = 1 << 26
"""Elements of a call's tensors: some ten copies are kept in float64 meanwhile, 5 GB."""
MOST_WORK = 1 << 30
"""Elements of a call, times the computations that one hypothesis tries with it: some tens of seconds on two cores."""
_EXPLAINED = 0.99  # from which on no number is fitted in place of a value that was tried

Line = Dict[str, Any]


@functools.lru_cache(maxsize=None)
def list_hypotheses(package: ModuleType) -> Tuple[Tuple[str, Hypothesis], ...]:
    """Return the hypotheses of ``of_call`` or ``of_backward`` with their names, those of their modules."""
    names = [found.name for found in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module("%s.%s" % (package.__name__, name)) for name in names]
    return tuple((name, module.HYPOTHESIS) for name, module in zip(names, modules))


def explain(call: RecordedCall, files: TensorFiles) -> Line:
    """Return what explains the target's error in a call.

    Raises:
        CannotCompute: The call cannot be computed again.
    """
    if call.gradients is None:
        calls, hypotheses = [call.call], list_hypotheses(of_call)
    else:
        calls, hypotheses = sorted({each.call for each in call.gradients.results}), list_hypotheses(of_backward)
    residuals: List[Line] = []
    if _count_elements(call) > MOST_ELEMENTS:
        found = Tried([], [name for name, _ in hypotheses], [])
    else:
        subject = _read_subject(call, files)
        found, residuals = try_all(subject, hypotheses), subject.describe_residuals()
    return {"call": call.call, "results": calls, **found._asdict(), "residuals": residuals}


def _read_subject(call: RecordedCall, files: TensorFiles) -> Union[Subject, Backward]:
    """Return what hypotheses are about: the call, or the backward of a module.

    Raises:
        CannotCompute: It cannot be computed again.
    """
    if call.gradients is not None:
        return _read_backward(call, call.gradients, files)
    if operators.kind_of(call) == operators.RANDOM:
        raise CannotCompute("it draws random numbers, which were not recorded")
    sides = {name: read_side(call.sides[name], files) for name in (REFERENCE, TARGET)}
    return Subject(call, sides, Computation(call, operators.kind_of(call)), files)


def _count_elements(call: RecordedCall) -> int:
    """Return the elements of the target's tensors, or of all functions of a backward, whose graphs are kept."""
    if call.gradients is None:
        target = call.sides[TARGET]
        return sum(math.prod(stored.shape) for stored in (*target.inputs, *target.outputs))
    slots = (slot for each in call.gradients.functions for slot in (*each.inputs.values(), *each.outputs.values()))
    return sum(math.prod(slot.shape) for slot in slots)


def _read_backward(call: RecordedCall, graph: GradientGraph, files: TensorFiles) -> Backward:
    """Return the backward of a module, by those of its gradients that the reference's own tensors reproduce."""
    computation = GradientComputation(graph)
    sides: List[Side] = []
    for name in (REFERENCE, TARGET):
        side = read_side(call.sides[name], files)
        sides.append(Side(side.inputs, side.outputs, computation.run(side.inputs, side.outputs)))
    reference, target = sides
    outputs = {
        index: exact
        for index, exact in reference.exact.outputs.items()
        if is_reproduced(measure_output(reference.recorded[index], reference.exact, index))
    }
    reference = reference._replace(exact=reference.exact._replace(outputs=outputs))
    return Backward(graph, computation, reference, target)


class Tried(NamedTuple):
    """What came of the hypotheses.

    Attributes:
        tried: The evidence that was looked for.
        left_out: Hypotheses that the call was too large for.
        found: Lines of the computations that explain most of the error, the best first.
    """

    tried: List[str]
    left_out: List[str]
    found: List[Line]


def try_all(subject: Union[Subject, Backward], hypotheses: Tuple[Tuple[str, Hypothesis], ...]) -> Tried:
    """Compute what the hypotheses propose, and measure what it explains.

    Args:
        subject: The call.
        hypotheses: With their names.
    """
    tried: Dict[str, None] = {}
    left_out: List[str] = []
    found: List[Line] = []
    for name, hypothesis in hypotheses:
        room = MOST_WORK - hypothesis.runs * subject.work
        try:
            for candidate in hypothesis.propose(subject) if room > 0 else ():
                room -= subject.work
                if room < 0:
                    break
                tried[hypothesis.tells] = None
                found += _try(subject, hypothesis, candidate)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # A call is data: a hypothesis that it does not fit says nothing of the others.
        if room < 0:
            left_out.append(name)
    known = {_name_change(line) for line in found if line["share"] > _EXPLAINED and not line["is_fitted"]}
    found = [line for line in found if not (line["is_fitted"] and _name_change(line) in known)]
    return Tried(list(tried), left_out, sorted(found, key=lambda line: -float(line["share"])))


def _name_change(line: Mapping[str, Any]) -> Tuple[str, str]:
    return line["tells"], line["argument"]


def _try(subject: Union[Subject, Backward], hypothesis: Hypothesis, candidate: Candidate) -> List[Line]:
    """Return the line of a candidate; none if it explains too little, or torch refuses it."""
    try:
        fitted = subject.aim.measure(candidate.compute())
        if fitted is None or not fitted.share >= fit.LEAST:
            return []
        outputs = candidate.measure() if candidate.measure is not None else []
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return []
    kept = {name: getattr(candidate, name) for name in ("name", "value", "argument", "recorded", "is_fitted")}
    return [
        {"tells": hypothesis.tells, "says": hypothesis.says, **kept, **candidate.facts, **fitted._asdict(), "outputs": outputs}
    ]

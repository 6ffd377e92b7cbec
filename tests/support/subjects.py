"""Calls under suspicion: what the agent's hypotheses are given, without dumps."""

import ml_dtypes
import numpy as np
import torch

from precflow.agent.hypotheses import of_call
from precflow.agent.hypotheses.engine import list_hypotheses, try_all
from precflow.agent.hypotheses.subject import Subject
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, RecordedCall, SideTensors, StoredTensor, TensorFiles
from precflow.agent.replay.computation import Computation, SideValues, float64_defaults
from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.explained import read_explanation

FITS = 0.9


def describe(tensors):
    return tuple(StoredTensor(path, str(one.dtype)[6:], tuple(one.shape), None, 0, 0) for path, one in tensors.items())


def subject_of(operator, arguments, inputs, right, wrong):
    """Return a call that gave one output on the reference and another one on the target; inputs by path or in order."""
    given = inputs if isinstance(inputs, dict) else {str(place): one for place, one in enumerate(inputs) if one is not None}
    sides = {side: SideValues(given, {"0": made}, {}, {}) for side, made in (("reference", right), ("target", wrong))}
    stored = {side: SideTensors(describe(each.inputs), describe(each.outputs)) for side, each in sides.items()}
    call = RecordedCall("a/f.0", "api", operator, "", "forward", arguments, stored)
    return Subject(call, sides, Computation(call, operators.kind_of(call)), TensorFiles())


def explain(operator, arguments, inputs, right, wrong, tells="variant"):
    """Return the line of what explains a target's output best; ``None`` if nothing fits."""
    with float64_defaults(), torch.no_grad():
        tried = try_all(subject_of(operator, arguments, inputs, right, wrong), list_hypotheses(of_call))
    fitting = [line for line in tried.found if line["tells"] == tells and line["sure"] > FITS]
    return fitting[0] if fitting else None


def explain_calls(reference, target):
    """Return what explains the calls of two dumps of which all tensors were kept, as a run with an agent knows it."""
    others = {name_call(call): call for call in target.calls()}
    found = []
    for call in reference.calls():
        calls = (call, others[name_call(call)])
        if any(not record.stored for one in calls for record in (*one.inputs, *one.outputs)) or not call.operator:
            continue
        tensors = [
            [{record.index: as_tensor(dump.tensor(record)) for record in records} for records in (one.inputs, one.outputs)]
            for dump, one in zip((reference, target), calls, strict=True)
        ]
        sides = {side: SideValues(*each, {}, {}) for side, each in zip(("reference", "target"), tensors, strict=True)}
        stored = {side: SideTensors(describe(each.inputs), describe(each.outputs)) for side, each in sides.items()}
        recorded = RecordedCall(name_call(call), "api", call.operator, "", call.phase, dict(call.arguments), stored)
        with float64_defaults(), torch.no_grad():
            try:
                subject = Subject(recorded, sides, Computation(recorded, operators.kind_of(recorded)), TensorFiles())
            except CannotCompute:
                continue
            tried = try_all(subject, list_hypotheses(of_call))
            residuals = subject.describe_residuals()
        found.append(read_explanation({"results": [name_call(call)], **tried._asdict(), "residuals": residuals}))
    return found


def as_tensor(array):
    array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)

"""Where an exception of the workload was raised: module, phase, operator, shapes, and the operator that the device lacks.

All of it is read from the traceback, so that it is known in every step, recorded or not: torch runs each module in a function
of its own, whose frame holds the module and its arguments, and while something is recorded the recorders' frames hold the
operator. What a recording adds are the last record, and the shapes that a module was given in calls that came to their end.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from types import CodeType, FrameType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.capture.arguments import split_arguments
from precflow.agent.capture.aten_operators import AtenRecorder
from precflow.agent.capture.module_hooks import class_name_of
from precflow.agent.capture.operator_names import aten_name, operator_name
from precflow.agent.capture.torch_functions import FunctionRecorder
from precflow.agent.capture.trail import Trail, describe_tensors
from precflow.agent.contract import BACKWARD, FORWARD, OPTIMIZER, join_names, module_text
from precflow.agent.measure.content_id import dtype_name
from precflow.agent.session.user_code import is_user_code

Tops = Sequence[Tuple[str, torch.nn.Module]]  # models by the name that stands before those of their modules

_MODULES = os.path.abspath(sys.modules[torch.nn.Module.__module__].__file__ or "")
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FUNCTIONS = os.path.abspath(sys.modules[torch.autograd.Function.__module__].__file__ or "")
_ENGINE = ("_engine_run_backward", "backward", "grad")  # functions of torch.autograd that run a backward
_MOST_CAUSES = 8
_LARGEST_SHOWN = 5
_LONGEST_LINE = 200

# What torch and the libraries below it say of an operator that is not there: its name, and the place that lacks it.
_MISSING = tuple(
    re.compile(pattern)
    for pattern in (
        r"Could not run '(?P<operator>[\w:.]+)' (?:with arguments )?from the '(?P<place>\w+)' (?:backend|device)",
        r"[Tt]he operator '(?P<operator>[\w:.]+)' is not currently (?:implemented|supported) (?:for|on) the (?P<place>\w+)",
        r"\"(?P<operator>[\w:.]+)\" not implemented for '(?P<place>\w+)'",
        r"call (?P<operator>aclnn\w+) failed",
        r"(?P<operator>aclnn\w+) or aclnn\w+GetWorkspaceSize not (?:in|found)",
        r"'_OpNamespace' '\w+' object has no attribute '(?P<operator>\w+)'",
        r"module '(?P<place>torch[\w.]*)' has no attribute '(?P<operator>\w+)'",
        r"No such operator (?P<operator>[\w:.]+)",
        r"No module named '(?P<operator>[\w.]+)'",
        r"(?P<operator>no kernel image is available)",
    )
)
_NO_MEMORY = re.compile(r"out of memory|(?:can't|cannot) allocate memory|not enough memory", re.IGNORECASE)
_WHOSE = re.compile(r"(?:CUDA|NPU|XPU|MPS)(?= out of memory)|(?<=Default)CPU(?=Allocator)")
_ASKED = re.compile(r"[Tt]ried to allocate (?P<amount>[\d.]+ ?(?:[KMGT]i?B|bytes))")


class _Place(NamedTuple):
    """What the frames of a traceback say.

    Attributes:
        phase: ``forward``, ``backward``, ``optimizer``, or ``""``.
        modules: Running modules, the innermost last.
        call: Frame in which torch runs the innermost.
        recorder: Innermost frame of a recorder of calls.
        user: Innermost frame of user code, and its line.
        node: The user's own ``autograd.Function`` whose backward ran.
    """

    phase: str
    modules: List[torch.nn.Module]
    call: Optional[FrameType]
    recorder: Optional[FrameType]
    user: Optional[Tuple[FrameType, int]]
    node: str


def describe_failure(error: BaseException, trail: Optional[Trail] = None, tops: Tops = ()) -> Dict[str, Any]:
    """Return where an exception was raised, as plain data with the keys of ``contract.FAILURE``.

    Args:
        error: With its traceback; what it was raised from is looked at too.
        trail: What the recording remembers; ``None`` if nothing is recorded.
        tops: The models. Without any, the outermost module of the traceback is the model.
    """
    errors = _list_causes(error)
    place = _read_frames([frame for each in errors for frame in traceback.walk_tb(each.__traceback__)])
    text = "\n".join("%s" % each for each in errors)
    module, class_name = _name_module(place, tops)
    operator, tensors = _read_recorder(place.recorder)
    operator = operator or place.node
    site, phase, arrived = "", place.phase, ""
    if phase == BACKWARD and not place.modules and trail is not None and trail.running.phase == BACKWARD:
        module, class_name, site = trail.running.module, trail.running.class_name, trail.running.site
        operator, arrived = operator or trail.running.operator, trail.running.given
    given = _read_arguments(place.call)
    lacking = next((found for pattern in _MISSING if (found := pattern.search(text))), None) if text else None
    known = lacking.groupdict() if lacking else {}
    return {
        "error": type(errors[-1]).__name__,
        "step": trail.step if trail is not None else None,
        "phase": phase,
        "module": module,
        "class": class_name,
        "operator": operator,
        "missing": known.get("operator") or "",
        "missing_in": known.get("place") or "",
        "inputs": describe_tensors(tensors),
        "given": describe_tensors(given),
        "arrived": arrived,
        "seen": [] if trail is None else trail.list_shapes(module),
        "last": "" if trail is None else trail.describe_last(),
        "site": site,
        **_describe_line(place.user),
        "memory": _describe_memory(text, tensors or given, tops, errors) if is_out_of_memory(error) else {},
    }


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that there was too little memory."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search("%s" % error))


def _list_causes(error: BaseException) -> List[BaseException]:
    """Return an exception and what it was raised from, the first cause last."""
    errors = [error]
    while len(errors) < _MOST_CAUSES:
        cause = errors[-1].__cause__ or (None if errors[-1].__suppress_context__ else errors[-1].__context__)
        if cause is None or cause in errors:
            break
        errors.append(cause)
    return errors


def _read_frames(frames: Sequence[Tuple[FrameType, int]]) -> _Place:
    phase, node, call, recorder, user = "", "", None, None, None
    modules: List[torch.nn.Module] = []
    for frame, line in frames:
        code = frame.f_code
        path = os.path.abspath(code.co_filename)
        if path == _MODULES:
            module = frame.f_locals.get("self")
            if isinstance(module, torch.nn.Module) and "args" in frame.f_locals:
                phase = phase or FORWARD
                if not modules or modules[-1] is not module:
                    modules.append(module)
                call = frame
        elif path.startswith(_TORCH + "autograd") and code.co_name in _ENGINE:
            # What is below runs in backward, such as what a checkpoint computes again.
            phase, modules, call, recorder = BACKWARD, [], None, None
        elif path == _FUNCTIONS and code.co_name == "apply" and phase == BACKWARD:
            node = type(frame.f_locals.get("self")).__name__
        elif path.startswith(_TORCH + "optim") and code.co_name == "step":
            phase = OPTIMIZER
        elif code in _RECORDERS:
            recorder = frame
        elif is_user_code(path):
            user = (frame, line)
    return _Place(phase, modules, call, recorder, user, node)


_RECORDERS: Mapping[CodeType, Any] = {
    FunctionRecorder.call.__code__: operator_name,
    AtenRecorder.call.__code__: aten_name,
}


def _read_recorder(frame: Optional[FrameType]) -> Tuple[str, List[Tuple[str, torch.Tensor]]]:
    """Return the operator that was running in a frame of a recorder, and the tensors that it was given."""
    if frame is None:
        return "", []
    function = frame.f_locals.get("function")
    name = _RECORDERS[frame.f_code](function) or getattr(function, "__name__", "")
    tensors, _ = split_arguments(frame.f_locals.get("positional", ()), frame.f_locals.get("keywords", {}))
    return str(name), tensors


def _read_arguments(frame: Optional[FrameType]) -> List[Tuple[str, torch.Tensor]]:
    """Return the tensors that a module was given, from the frame in which torch runs it."""
    if frame is None:
        return []
    positional, keywords = frame.f_locals.get("args", ()), frame.f_locals.get("kwargs") or {}
    return split_arguments(positional, keywords)[0]


def _name_module(place: _Place, tops: Tops) -> Tuple[str, str]:
    """Return name and class of the innermost module, of one that is in no model the class alone."""
    if not place.modules:
        return "", ""
    innermost = place.modules[-1]
    for prefix, top in (*tops, ("", place.modules[0])):
        for name, module in top.named_modules():
            if module is innermost:
                return module_text(join_names(prefix, name)), class_name_of(innermost)
    return "", class_name_of(innermost)


def _describe_line(user: Optional[Tuple[FrameType, int]]) -> Dict[str, Any]:
    """Return file, line and text of the innermost line of user code; the path is for a scan of this file."""
    if user is None:
        return {"file": "", "line": 0, "source": ""}
    frame, line = user
    path = os.path.abspath(frame.f_code.co_filename)
    return {"file": path, "line": line, "source": linecache.getline(path, line).strip()[:_LONGEST_LINE]}


def _describe_memory(
    text: str, given: Sequence[Tuple[str, torch.Tensor]], tops: Tops, errors: Sequence[BaseException]
) -> Dict[str, Any]:
    """Return how much was asked for, how much tensors held on the device, and the largest of them with their names."""
    from precflow.agent.session.alive import list_alive, name_alive

    asked = _ASKED.search(text)
    named = _WHOSE.search(text)
    held = (*[tensor for _, tensor in given], *[weight for _, top in tops for weight in top.parameters()])
    kind = named[0].lower() if named else next((tensor.device.type for tensor in held), "cpu")
    alive = list_alive(kind)
    frames = [frame for each in errors for frame, _ in traceback.walk_tb(each.__traceback__)]
    names = name_alive(alive[:_LARGEST_SHOWN], tops, frames)
    return {
        "device": kind,
        "asked": asked["amount"] if asked else "",
        "tensors": len(alive),
        "bytes": sum(each.size for each in alive),
        "largest": [
            {
                "name": name,
                "dtype": dtype_name(each.tensor.dtype),
                "shape": list(each.tensor.shape),
                "bytes": each.size,
            }
            for each, name in zip(alive, names)
        ],
    }

"""Level ``api``: calls of torch's Python functions (``torch.add``, ``F.linear``, ``x + y``), recorded by a function mode.

While a ``TorchFunctionMode`` is active, torch hands it every function of its Python interface before running it::

    F.linear(x, weight)    ->    mode.__torch_function__(F.linear, (), (x, weight), {})

Only the outermost function is recorded. While the mode handles a call, torch takes it off its stack, so that the functions that
``F.linear`` calls inside are not seen. What runs below Python is recorded by :mod:`precflow.agent.capture.aten_operators`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.arguments import Signatures, split_arguments
from precflow.agent.capture.calls import CaptureContext, OperatorCalls
from precflow.agent.capture.collectives import is_distributed
from precflow.agent.capture.lineage import version_of
from precflow.agent.capture.operator_names import is_movement, operator_name
from precflow.agent.capture.record_lines import Heading
from precflow.agent.capture.wrappers import is_compiling
from precflow.agent.contract import ALLOCATION, NONE, PLACEMENT

if TYPE_CHECKING:
    from precflow.agent.capture.nesting import TensorWithPath

Function = Callable[..., Any]

_GRADIENT = torch.Tensor.grad  # the one attribute whose value is not made from its tensor
_top_mode: Optional[Callable[[], Any]] = getattr(  # of torch's stack; private, and missing on some versions
    sys.modules["torch.overrides"], "_get_current_function_mode", None
)


class FunctionRecorder:
    """Records calls of torch functions: inputs before, outputs after.

    Args:
        context: Where records go, and what else all recorders of calls share.
    """

    def __init__(self, context: CaptureContext) -> None:
        lines, self._stack, self._sites, self._is_listening, self._guard = context
        self._calls = OperatorCalls(lines)
        self._signatures = Signatures()

    def call(self, function: Function, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run a torch function and record it; its result and its exceptions reach the caller unchanged.

        Raises:
            WriteError: The dump cannot be written.
        """
        if not self._stack.innermost.records_operators or not self._is_listening():
            return function(*positional, **keywords)
        name = "" if is_distributed(function) else operator_name(function)
        if not name or name in PLACEMENT:  # an attribute, or an operator that only casts, moves or allocates
            result = function(*positional, **keywords)
            if name not in ALLOCATION and getattr(function, "__self__", None) is not _GRADIENT:
                with self._guard:
                    self._calls.pass_source_on(positional, result)
            return result
        module_call = self._stack.innermost
        # Counted even if it is not recorded: the ordinals of records must not depend on what else is recorded.
        ordinal = module_call.count_run(name)
        choice = self._stack.choose("api", module_call.module, module_call.class_name, name)
        if choice.detail == NONE:
            return function(*positional, **keywords)
        with self._guard:
            tensors, arguments = split_arguments(positional, keywords, self._signatures.parameter_names(function))
            site = self._sites.find_number(module_call.caller)
            heading = Heading("api", module_call, name, ordinal, site, is_movement(name), arguments)
            running = self._calls.begin(heading, choice, tensors)
            versions = [version_of(tensor) for _, tensor in tensors]
        # Outside the guard, so that the aten operators inside this function can be recorded as well.
        result = function(*positional, **keywords)
        with self._guard:
            in_place = name.endswith("_") or name == "setitem" or "out" in keywords or keywords.get("inplace") is True
            written = _find_written(tensors, versions, in_place=in_place)
            if in_place and not written and name.startswith("foreach_"):
                # Below a dispatch mode, torch does not raise the versions of what `_foreach_mul_` writes to: its first list.
                written = [each for each in tensors if each[0].startswith("0.")]
            self._calls.end(running, result, written)
            if in_place and not written:  # such as the operators of a gradient scaler, which count no version
                self._calls.note_possible_writes(tensors)
        return result


def _find_written(tensors: List[TensorWithPath], versions: List[Optional[int]], *, in_place: bool) -> List[TensorWithPath]:
    """Return the inputs that a call wrote to.

    These are the inputs whose version has grown. Inference tensors have no version; of those, an in-place operator is assumed
    to have written to ``out``, or else to the first.

    Args:
        tensors: The inputs.
        versions: Their versions before the call.
        in_place: Name or arguments of the call say that it writes.
    """
    written = [each for each, version in zip(tensors, versions) if version_of(each[1]) != version]
    if not in_place or None not in versions:
        return written
    # torch.add(x, 1, out=y) names what it writes to; x.add_(1) writes to its first tensor.
    unversioned = [each for each, version in zip(tensors, versions) if version is None]
    return written + ([each for each in unversioned if each[0] == "out"] or unversioned[:1])


def leave_mode(mode: TorchFunctionMode) -> None:
    """Take a mode off torch's stack, also if others were entered since: torch itself would remove the topmost one instead.

    A script may enter a mode of its own during a step and leave it after the step has ended.
    """
    above: List[Any] = []
    while _top_mode is not None and _top_mode() not in (mode, None):
        above.append(overrides._pop_mode())  # noqa: SLF001  only a context manager has a public name
    if _top_mode is None or _top_mode() is mode:
        mode.__exit__(None, None, None)
    for other in reversed(above):
        overrides._push_mode(other)  # noqa: SLF001  the same


class FunctionMode(TorchFunctionMode):
    """Hands the outermost torch functions of this thread to a recorder."""

    def __init__(self, recorder: FunctionRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._active = False

    def __torch_function__(
        self, func: Function, types: Tuple[type, ...], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Run a function on behalf of torch."""
        if is_compiling():  # what is traced would contain this recorder
            return func(*args, **(kwargs or {}))
        del types
        return self._recorder.call(func, args, kwargs or {})

    def start(self) -> None:
        """Begin to listen."""
        if not self._active:
            self.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it
            self._active = True

    def stop(self) -> None:
        """Stop listening; does nothing while the mode has stepped aside."""
        if self._active:
            self._active = False
            leave_mode(self)

    def step_aside(self) -> bool:
        """Leave torch's stack of modes for code that must run unrecorded; return whether it did.

        torch removes modes only from the top: if the model has entered another mode since, this one stays.
        """
        if self._active and _top_mode is not None and _top_mode() is self:
            self.stop()
            return True
        return False

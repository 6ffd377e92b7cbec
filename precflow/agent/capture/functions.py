"""Operators: the outermost torch functions of a run, seen by one function mode."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.arguments import Signatures, split_arguments
from precflow.agent.capture.calls import Calls
from precflow.agent.capture.lineage import version_of
from precflow.agent.capture.operator_names import operator_name
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import ALLOCATION, MOVEMENT, NONE, PLACEMENT

if TYPE_CHECKING:
    from precflow.agent.capture.call_sites import Sites
    from precflow.agent.capture.call_stack import Frames
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.nesting import Placed
    from precflow.agent.capture.record_lines import Lines

Function = Callable[..., Any]

_GRADIENT = torch.Tensor.grad  # the one attribute that is not made of its tensor


class Operators:
    """Records operator calls: inputs before, outputs after.

    Args:
        lines: Where records go.
        frames: The running modules.
        sites: Call sites.
        listening: Tells whether calls are to be recorded just now.
        guard: Held while anything is looked at.
    """

    def __init__(self, lines: Lines, frames: Frames, sites: Sites, listening: Callable[[], bool], guard: Guard) -> None:
        self._calls = Calls(lines)
        self._frames = frames
        self._sites = sites
        self._listening = listening
        self._guard = guard
        self._signatures = Signatures()

    def call(self, function: Function, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run a torch function and record it; its result and its exceptions are the caller's, unchanged.

        Raises:
            WriteError: The dump cannot be written.
        """
        if not self._frames.innermost.open or not self._listening():
            return function(*positional, **keywords)
        name = operator_name(function)
        if not name or name in PLACEMENT:
            result = function(*positional, **keywords)
            if name not in ALLOCATION and getattr(function, "__self__", None) is not _GRADIENT:
                with self._guard:
                    self._calls.carry(positional, result)
            return result
        frame = self._frames.innermost
        choice = self._frames.choice("api", frame.module, frame.class_name, name)
        if choice.detail == NONE:
            frame.ordinal(name)
            return function(*positional, **keywords)
        with self._guard:
            tensors, arguments = split_arguments(positional, keywords, self._signatures.names(function))
            heading = Heading(
                "api", frame, name, frame.ordinal(name), self._sites.here(frame.above), is_movement(name), arguments
            )
            begun = self._calls.begin(heading, choice, tensors)
            versions = [version_of(tensor) for _, tensor in tensors]
        result = function(*positional, **keywords)
        with self._guard:
            in_place = name.endswith("_") or name == "setitem" or "out" in keywords or keywords.get("inplace") is True
            written = _written(tensors, versions, in_place=in_place)
            self._calls.end(begun, result, written)
            if in_place and not written:  # as those of a gradient scaler
                self._calls.doubt(tensors)
        return result


@lru_cache(maxsize=4096)
def is_movement(name: str) -> bool:
    """Tell whether an operator only moves values."""
    return name.rstrip("_") in MOVEMENT or name in MOVEMENT


def _written(tensors: List[Placed], versions: List[Optional[int]], *, in_place: bool) -> List[Placed]:
    """Return the inputs that a call wrote to; where versions are not counted, the first of an operator that writes in place.

    Args:
        tensors: The inputs.
        versions: Of each, before the call.
        in_place: The call says of itself that it writes.
    """
    changed = [placed for placed, version in zip(tensors, versions) if version_of(placed[1]) != version]
    if not in_place or None not in versions:
        return changed
    return changed + _target([placed for placed, version in zip(tensors, versions) if version is None])


def _target(tensors: List[Placed]) -> List[Placed]:
    return [placed for placed in tensors if placed[0] == "out"] or tensors[:1]


class OperatorMode(TorchFunctionMode):
    """Hands the outermost torch functions of this thread to the operators.

    While it is handling a function torch keeps it off the stack, so that functions inside a function are not seen.
    """

    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self._operators = operators
        self._active = False

    def __torch_function__(
        self, func: Function, types: Tuple[type, ...], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Run a function on behalf of torch."""
        del types
        return self._operators.call(func, args, kwargs or {})

    def start(self) -> None:
        """Begin to listen."""
        if not self._active:
            self.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it
            self._active = True

    def stop(self) -> None:
        """Listen no longer; nothing happens where it had stepped aside."""
        if self._active:
            self._active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # the same

    def step_aside(self) -> bool:
        """Leave the stack for code that must run as if nobody listened; return whether it did.

        It stays where another mode was entered after it: modes can only be taken from the top.
        """
        top = _top_mode()
        if self._active and top is self:
            self.stop()
            return True
        return False


def _top_mode() -> Optional[TorchFunctionMode]:
    look = getattr(sys.modules["torch.overrides"], "_get_current_function_mode", None)
    found: Optional[TorchFunctionMode] = None if look is None else look()
    return found

"""Modules: hooks on each module of a model, and the boundary of those that are compiled."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.arguments import Signatures, split_arguments
from precflow.agent.capture.call_sites import Above
from precflow.agent.capture.lineage import is_new, storages_of, version_of
from precflow.agent.capture.nesting import Placed, output_tensors
from precflow.agent.capture.record_lines import Heading
from precflow.agent.contract import OUTSIDE

if TYPE_CHECKING:
    from precflow.agent.capture.call_sites import Sites
    from precflow.agent.capture.call_stack import Frame, Frames
    from precflow.agent.capture.graph import Graph
    from precflow.agent.capture.guard import Guard
    from precflow.agent.capture.record_lines import Lines

    _Partial = partial[None]
else:
    _Partial = partial

Undo = Callable[[], None]


class Mode(Protocol):
    """A mode of torch that listens to operators."""

    def start(self) -> None:
        """Begin to listen."""

    def step_aside(self) -> bool:
        """Leave for code that must run as if nobody listened; return whether it did."""


_COMPILED_CALL = "_compiled_call_impl"  # what nn.Module calls instead of its forward; set by Module.compile()


class Boundary(NamedTuple):
    """A module that is watched from outside: its name, the module, and whether its inside is compiled."""

    name: str
    module: torch.nn.Module
    compiled: bool


class _Hook(_Partial):
    """A hook of one module alone: in a copy of it, and in what is loaded where nothing of ours is, it does nothing."""

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
        """Return what is copied and pickled in its place: a function that takes everything and returns ``None``."""
        return getattr, (nullcontext(), "__exit__")


class Modules:
    """Records module calls and keeps the stack of running modules.

    Args:
        lines: Where records go.
        frames: The running modules.
        sites: Call sites.
        listening: Tells whether calls are to be recorded just now.
        guard: Held while anything is looked at.
        recorded: Whether module calls are records; if not, only the stack is kept.
        graph: Follows the autograd graph, where gradients are to be recorded.
    """

    def __init__(  # noqa: PLR0913  the parts of capture that meet here
        self,
        lines: Lines,
        frames: Frames,
        sites: Sites,
        listening: Callable[[], bool],
        guard: Guard,
        *,
        recorded: bool,
        graph: Optional[Graph] = None,
    ) -> None:
        self._lines = lines
        self._frames = frames
        self._sites = sites
        self._listening = listening
        self._guard = guard
        self._recorded = recorded
        self._graph = graph
        self._signatures = Signatures()
        self._modes: Sequence[Mode] = ()

    def attach(self, model: torch.nn.Module, modes: Sequence[Mode]) -> List[Undo]:
        """Watch every module of the model, down to compiled ones; return what takes it all off again.

        Args:
            model: The model.
            modes: What steps aside while compiled code runs, the last one entered first.
        """
        self._modes = modes
        undo: List[Undo] = []
        for boundary in boundaries(model):
            undo.extend([self._wrap(boundary)] if _calls_past_hooks(boundary.module) else self._hook(boundary))
        return undo

    def _hook(self, boundary: Boundary) -> List[Undo]:
        entered, left = _Hook(self._entered, boundary), _Hook(self._left, boundary)
        return [
            boundary.module.register_forward_pre_hook(entered, with_kwargs=True).remove,
            boundary.module.register_forward_hook(left, with_kwargs=True, always_call=True).remove,
        ]

    def _wrap(self, boundary: Boundary) -> Undo:
        """Stand in for the compiled call of a module: a hook would be compiled into it, or is refused (TorchScript)."""
        module = boundary.module
        before = module.__dict__.get(_COMPILED_CALL)
        call = before or module._call_impl  # noqa: SLF001  what nn.Module itself calls

        def watched(*positional: Any, **keywords: Any) -> Any:
            """Call the compiled code between what the hooks of another module would do."""
            self._entered(boundary, module, positional, keywords)
            result = None
            try:
                result = call(*positional, **keywords)
            finally:
                self._left(boundary, module, positional, keywords, result)
            return result

        def restore() -> None:
            """Put back what was called before."""
            module.__dict__.pop(_COMPILED_CALL, None)
            if before is not None:
                module.__dict__[_COMPILED_CALL] = before

        module.__dict__[_COMPILED_CALL] = watched
        return restore

    def _entered(
        self, boundary: Boundary, module: torch.nn.Module, positional: Sequence[Any], keywords: Dict[str, Any]
    ) -> None:
        if not self._listening():
            self._again(boundary, module, positional, keywords)
            return
        if self._graph is not None and not self._frames.running:
            self._graph.flush()
        frame = self._frames.enter(boundary.name, class_name(module), compiled=boundary.compiled)
        frame.raising = sys.exc_info()[1]
        frame.above = Above(sys._getframe(1))  # noqa: SLF001  what runs the module: nothing else tells, and it costs nothing
        if self._graph is not None or (self._recorded and frame.in_scope):
            with self._guard:
                self._describe_inputs(frame, module, positional, keywords)
        if boundary.compiled:
            frame.resume = [mode for mode in self._modes if mode.step_aside()]

    def _describe_inputs(
        self, frame: Frame, module: torch.nn.Module, positional: Sequence[Any], keywords: Dict[str, Any]
    ) -> None:
        tensors: List[Placed] = []
        if frame.in_scope:
            names = self._signatures.names(module.forward)[1:]
            tensors, frame.arguments = split_arguments(positional, keywords, names)
            frame.site = self._sites.here(frame.above)
        if frame.in_scope and self._recorded:
            frame.choice = self._frames.choice("module", frame.module, frame.class_name)
        if frame.recorded:
            frame.given = [(tensor, version_of(tensor)) for _, tensor in tensors]
            frame.inputs = self._lines.describe(tensors, store=True, choice=frame.choice)
        if self._graph is not None:
            self._graph.entered(frame, tensors)

    def _left(
        self, boundary: Boundary, module: torch.nn.Module, positional: Sequence[Any], keywords: Dict[str, Any], result: Any
    ) -> None:
        del module, positional, keywords
        if not self._listening():
            self._left_again(boundary, result)
            return
        taken = self._frames.leave(boundary.name)
        for mode in [mode for frame in taken for mode in reversed(frame.resume)]:
            mode.start()
        if not taken:
            return
        frame = taken[-1]
        returned = sys.exc_info()[1] is frame.raising  # otherwise the forward was left by an exception and returned nothing
        with self._guard:
            if frame.resume:
                self._lines.unsure()
            outputs = output_tensors(result) if returned else []
            if returned and frame.recorded:
                self._record(frame, outputs)
            if self._graph is not None:
                self._graph.left(frame, outputs, self._frames.innermost)
        for each in taken:
            each.close()

    def _again(self, boundary: Boundary, module: torch.nn.Module, positional: Sequence[Any], keywords: Dict[str, Any]) -> None:
        """Follow a module that backward computes once more."""
        if self._graph is not None and autograd.recomputing() and not self._lines.failed:
            with self._guard:
                tensors, _ = split_arguments(positional, keywords, self._signatures.names(module.forward)[1:])
                self._graph.entered_again(boundary.name, class_name(module), tensors)

    def _left_again(self, boundary: Boundary, result: Any) -> None:
        if self._graph is not None and autograd.recomputing() and not self._lines.failed:
            with self._guard:
                self._graph.left_again(boundary.name, output_tensors(result))

    def _record(self, frame: Frame, outputs: List[Placed]) -> None:
        heading = Heading("module", frame, "", 0, frame.site, False, frame.arguments)  # noqa: FBT003  a named tuple's field
        if self._frames.innermost.module == OUTSIDE or not self._frames.innermost.recorded:
            for _, tensor in outputs:  # the end is read anew: NumPy and kernels of other libraries write without being counted
                self._lines.written(tensor)
        described = self._lines.describe(outputs, store=True, returned=True, choice=frame.choice)
        order = frame.order = self._lines.emit(heading, frame.inputs, described)
        passed: Optional[Set[int]] = None
        for index, tensor in outputs:
            if self._lines.sources.find(tensor) is not None:  # also the second of two outputs that are one tensor
                continue
            if passed is None:
                passed = {id(given) for given, version in frame.given if version_of(given) == version}
            if id(tensor) not in passed:  # made by what is not recorded
                views = storages_of(given for given, _ in frame.given if id(given) in passed)
                self._lines.sources.produced(tensor, (order, index), made=is_new(tensor, views))


def boundaries(model: torch.nn.Module) -> Iterator[Boundary]:
    """Yield every module by its first name, without those inside compiled ones."""
    inside: Set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        compiled = is_compiled(module)
        if compiled:
            inside.update(id(each) for each in module.modules())
        yield Boundary(name, module, compiled)


def is_compiled(module: torch.nn.Module) -> bool:
    """Tell whether calling the module runs compiled code: ``torch.compile``, ``Module.compile()`` or TorchScript."""
    return _calls_past_hooks(module) or _is_optimized(module)


def _is_optimized(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule"  # by name: importing it would import the whole compiler


def _calls_past_hooks(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) or module.__dict__.get(_COMPILED_CALL) is not None


def class_name(module: torch.nn.Module) -> str:
    """Return the name of the class that the author wrote, also where compilation has wrapped it."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    written = getattr(module, "_orig_mod", module) if _is_optimized(module) else module
    return type(written).__name__

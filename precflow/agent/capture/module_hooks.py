"""Level ``module``: hooks before and after the forward of every module of a model, down to compiled ones.

The hooks keep the stack of running modules for all of capture. A compiled module is watched from outside only: its inside is
no Python code any more, and our modes on the stack would make the compiler skip it or compile it again.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.arguments import Signatures, split_arguments
from precflow.agent.capture.call_sites import ModuleCaller
from precflow.agent.capture.lineage import has_own_memory, storages_of, version_of
from precflow.agent.capture.module_settings import read_settings
from precflow.agent.capture.nesting import TensorWithPath, output_tensors
from precflow.agent.capture.record_lines import Heading
from precflow.agent.capture.wrappers import COMPILED_CALL, bypasses_hooks, is_compiled, is_compiling, is_optimized, unwrap
from precflow.agent.contract import OUTSIDE, join_names

if TYPE_CHECKING:
    from precflow.agent.capture.call_stack import ModuleCall
    from precflow.agent.capture.calls import CaptureContext
    from precflow.agent.capture.graph import Graph
    from precflow.agent.capture.guard import Mode

    _Partial = partial[None]
else:
    _Partial = partial

Undo = Callable[[], None]
BeforeCall = Callable[[torch.nn.Module, Sequence[Any], Dict[str, Any]], None]
"""Is given a module that is about to be called, and its positional and keyword arguments."""
_Run = Callable[[Callable[..., Any], Sequence[Any], Dict[str, Any]], Any]
"""Runs a call that it is given, with the arguments behind it."""


class WatchedModule(NamedTuple):
    """A module to watch.

    Attributes:
        name: Its name.
        module: The module.
        compiled: Its inside is compiled code.
        inside: Number of modules in that code, which cannot be seen.
        eager: It is compiled, and runs as it was written.
    """

    name: str
    module: torch.nn.Module
    compiled: bool
    inside: int = 0
    eager: bool = False


class RunningCall(NamedTuple):
    """A call of a module that runs now, with its arguments."""

    module: torch.nn.Module
    positional: Sequence[Any]
    keywords: Dict[str, Any]


class Hook(_Partial):
    """A hook that only works on the module it was made for.

    Hooks are copied and pickled with their module (``copy.deepcopy(model)``, ``torch.save(model)``). The copy must not record,
    and must load where precflow is not installed, so a function of the standard library takes the hook's place in it.
    """

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
        """Return what is copied in its place: ``nullcontext().__exit__``, which takes any arguments and returns ``None``."""
        return getattr, (nullcontext(), "__exit__")


class ModuleRecorder:
    """Records module calls and keeps the stack of running modules.

    Args:
        context: Where records go, and what else all recorders of calls share.
        recorded: Module calls are records; if not, only the stack is kept.
        graph: Follows the autograd graph; ``None`` if gradients are not recorded.
        before_model: Called before each call of a module that no watched module makes.

    Attributes:
        calls: Number of module calls so far, recorded or not.
        unseen: Name of each compiled module that was called -> number of modules inside it, which could not be seen.
        eager: Names of compiled modules that were called and ran as they were written, in order.
        settings: Name of a module -> how it was set when its first call was recorded; modules without settings have ``{}``.
    """

    def __init__(
        self,
        context: CaptureContext,
        *,
        recorded: bool,
        graph: Optional[Graph] = None,
        before_model: Undo = lambda: None,
    ) -> None:
        self._lines, self._stack, self._sites, self._is_listening, self._guard = context
        self._recorded = recorded
        self._graph = graph
        self._before_model = before_model
        self._signatures = Signatures()
        self._modes: Sequence[Mode] = ()
        self.calls = 0
        self.unseen: Dict[str, int] = {}
        self.eager: Dict[str, None] = {}
        self.settings: Dict[str, Dict[str, str]] = {}

    def attach(
        self,
        model: torch.nn.Module,
        modes: Sequence[Mode],
        prefix: str = "",
        running: Optional[RunningCall] = None,
        *,
        compiles: bool = True,
    ) -> List[Undo]:
        """Watch every module of the model, down to compiled ones; return functions that take everything off again.

        Args:
            model: The model.
            modes: Modes that step aside while compiled code runs, the last one entered first.
            prefix: Name of the model among several.
            running: The call that runs now, if it was not watched from its beginning: torch does not call a hook that is set
                during a call for that call.
            compiles: Compiled modules run compiled code; ``False`` if compilation is switched off.
        """
        self._modes = modes
        undo: List[Undo] = []
        for watched in find_watched_modules(model, prefix, compiles=compiles):
            module = watched.module
            if watched.compiled and bypasses_hooks(module):
                undo.append(self._wrap(watched))
                continue
            if running is not None and module is running.module:
                self._before_forward(watched, module, running.positional, running.keywords)
            before, after = Hook(self._before_forward, watched), Hook(self._after_forward, watched)
            undo.append(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            # always_call: a module that an exception ends must leave the stack as well
            undo.append(module.register_forward_hook(after, with_kwargs=True, always_call=True).remove)
        return undo

    def _wrap(self, watched: WatchedModule) -> Undo:
        module = watched.module

        def run_watched(call: Callable[..., Any], positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
            """Run the compiled code between what the hooks of another module would do."""
            self._before_forward(watched, module, positional, keywords)
            result = None
            try:
                result = call(*positional, **keywords)
            finally:
                self._after_forward(watched, module, positional, keywords, result)
            return result

        return _replace_call(module, run_watched)

    def _before_forward(
        self,
        watched: WatchedModule,
        module: torch.nn.Module,
        positional: Sequence[Any],
        keywords: Optional[Dict[str, Any]] = None,
    ) -> None:
        if is_compiling():  # the code around is being traced: nothing of ours becomes part of it
            return
        # torch runs a hook once more if it was taken off during the call, and then without the keywords.
        keywords = keywords or {}
        if not self._is_listening():
            if self._graph is not None and autograd.is_recomputing() and not self._lines.failed:
                with self._guard:
                    tensors, _ = split_arguments(positional, keywords, self._signatures.parameter_names(module.forward)[1:])
                    self._graph.enter_again(watched.name, class_name_of(module), tensors)
            return
        if not self._stack.is_in_module:
            self._before_model()
            if self._graph is not None:
                self._graph.flush()  # a new forward of the model begins, so no backward pass of the last one is running
        self.calls += 1
        module_call = self._stack.enter(watched.name, class_name_of(module), compiled=watched.compiled)
        self._note_compiled(watched, module_call)
        module_call.exception_at_entry = sys.exc_info()[1]
        module_call.caller = ModuleCaller(sys._getframe(1))  # noqa: SLF001  the frame of torch that runs this hook; it costs nothing
        if self._graph is not None or (self._recorded and module_call.in_scope):
            with self._guard:
                self._describe_inputs(module_call, module, positional, keywords)
        if watched.compiled:
            module_call.paused_modes = [mode for mode in self._modes if mode.step_aside()]

    def _note_compiled(self, watched: WatchedModule, module_call: ModuleCall) -> None:
        if module_call.in_scope and watched.compiled:
            self.unseen[watched.name] = watched.inside
        elif module_call.in_scope and watched.eager:
            self.eager[watched.name] = None

    def _describe_inputs(
        self, module_call: ModuleCall, module: torch.nn.Module, positional: Sequence[Any], keywords: Dict[str, Any]
    ) -> None:
        tensors: List[TensorWithPath] = []
        if module_call.in_scope:
            names = self._signatures.parameter_names(module.forward)[1:]  # without `self`
            tensors, module_call.arguments = split_arguments(positional, keywords, names)
            module_call.site = self._sites.find_number(module_call.caller)
            if module_call.module not in self.settings:
                self.settings[module_call.module] = read_settings(module)
        if module_call.in_scope and self._recorded:
            module_call.choice = self._stack.choose("module", module_call.module, module_call.class_name)
        if module_call.is_recorded:
            module_call.given_versions = [(tensor, version_of(tensor)) for _, tensor in tensors]
            module_call.inputs = self._lines.describe(tensors, store=True, choice=module_call.choice)
            self._lines.note_running(module_call, site=module_call.site, tensors=tensors)
        if self._graph is not None:
            self._graph.enter(module_call, tensors)

    def _after_forward(
        self,
        watched: WatchedModule,
        module: torch.nn.Module,
        positional: Sequence[Any],
        *keywords_and_result: Any,
    ) -> None:
        if is_compiling():
            return
        del module, positional
        result = keywords_and_result[-1]  # torch leaves the keywords out for a hook that was taken off during the call
        if not self._is_listening():
            if self._graph is not None and autograd.is_recomputing() and not self._lines.failed:
                with self._guard:
                    self._graph.leave_again(watched.name, output_tensors(result))
            return
        ended = self._stack.leave(watched.name)
        # Modes left torch's stack from the top down, so they come back in the opposite order.
        for mode in [mode for module_call in ended for mode in reversed(module_call.paused_modes)]:
            mode.start()
        if not ended:
            return
        module_call = ended[-1]
        # torch calls this hook after an exception too, with no result. Another exception than the one that was being handled
        # when the module was entered has ended this forward.
        returned = sys.exc_info()[1] is module_call.exception_at_entry
        with self._guard:
            if module_call.paused_modes:  # compiled code ran unseen and may have written to any tensor
                self._lines.forget_contents()
            outputs = output_tensors(result) if returned else []
            if returned and module_call.is_recorded:
                self._record(module_call, outputs)
                self._lines.trail.note_shapes(module_call.module, module_call.inputs)
            if self._graph is not None:
                self._graph.leave(module_call, outputs, self._stack.innermost)
        for module_call in ended:
            module_call.close()

    def _record(self, module_call: ModuleCall, outputs: List[TensorWithPath]) -> None:
        """Write the line of a module call, and note it as the source of outputs that no recorded operator has made."""
        heading = Heading("module", module_call, "", 0, module_call.site, False, module_call.arguments)  # noqa: FBT003  a tuple's field
        if self._stack.innermost.module == OUTSIDE or not self._stack.innermost.is_recorded:
            # Outputs of the outermost module are measured anew: NumPy and kernels of other libraries write without raising
            # the version counter, so what is known of a tensor from its operator may be out of date.
            for _, tensor in outputs:
                self._lines.note_write(tensor)
        records = self._lines.describe(outputs, store=True, returned=True, choice=module_call.choice)
        order = module_call.order = self._lines.emit(heading, module_call.inputs, records)
        unchanged: Optional[Set[int]] = None  # inputs that nobody wrote to
        for index, tensor in outputs:
            if self._lines.sources.find(tensor) is not None:  # also the second of two outputs that are one tensor
                continue
            if unchanged is None:
                given_versions = module_call.given_versions
                unchanged = {id(given) for given, version in given_versions if version_of(given) == version}
            if id(tensor) not in unchanged:
                views = storages_of(given for given, _ in module_call.given_versions if id(given) in unchanged)
                self._lines.sources.note_output(tensor, (order, index), wrote=has_own_memory(tensor, views))


def watch_calls(module: torch.nn.Module, before: BeforeCall) -> Undo:
    """Have a function called before each call of a module, with its arguments; return what ends that.

    It never becomes part of compiled code, and sees the arguments as the caller passes them.
    """

    def note(module: torch.nn.Module, positional: Sequence[Any], keywords: Dict[str, Any]) -> None:
        """Call the function, unless the call is being traced by a compiler."""
        if not is_compiling():
            before(module, positional, keywords)

    if not bypasses_hooks(module):
        return module.register_forward_pre_hook(Hook(note), with_kwargs=True).remove

    def run(call: Callable[..., Any], positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run the compiled code after the function."""
        before(module, positional, keywords)
        return call(*positional, **keywords)

    return _replace_call(module, run)


def _replace_call(module: torch.nn.Module, run: _Run) -> Undo:
    """Replace the compiled call of a module: a hook would be compiled into it, or be refused (TorchScript)."""
    original = module.__dict__.get(COMPILED_CALL)
    call = original or module._call_impl  # noqa: SLF001  what nn.Module itself calls

    def run_watched(*positional: Any, **keywords: Any) -> Any:
        """Stand in for what ``Module.compile()`` has left there."""
        return run(call, positional, keywords)

    def restore() -> None:
        """Put the original call back."""
        if module.__dict__.get(COMPILED_CALL) is not run_watched:
            return  # somebody has compiled the module anew since
        del module.__dict__[COMPILED_CALL]
        if original is not None:
            module.__dict__[COMPILED_CALL] = original

    module.__dict__[COMPILED_CALL] = run_watched
    return restore


def find_watched_modules(model: torch.nn.Module, prefix: str = "", *, compiles: bool = True) -> Iterator[WatchedModule]:
    """Yield every module by its first name, without those inside compiled ones.

    Args:
        model: The model.
        prefix: Name of the model among several.
        compiles: ``False`` if compilation is switched off: then wrappers of ``torch.compile`` are left out instead.
    """
    hidden: Set[int] = set()
    optimized: Set[int] = set()  # modules whose wrapper is left out
    for path, module in model.named_modules():
        if id(module) in hidden:
            continue
        if not compiles and is_optimized(module):
            optimized.add(id(unwrap(module)))
            continue
        is_script = isinstance(module, torch.jit.ScriptModule)
        was_compiled = id(module) in optimized or is_compiled(module)
        compiled = was_compiled and (compiles or is_script)
        inside: Set[int] = set()
        if compiled:  # named_modules yields a module before those inside it, so that these are known when they come
            inside = {id(each) for each in module.modules() if each is not module and not is_optimized(each)}
            hidden.update(id(each) for each in module.modules())
        # What torch.compile has wrapped is the boundary itself.
        number = len(inside) - is_optimized(module) if compiled else 0
        yield WatchedModule(join_names(prefix, path), module, compiled, number, was_compiled and not compiled)


def class_name_of(module: torch.nn.Module) -> str:
    """Return the name of the class that the author wrote, also if compilation has wrapped it."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    # torch.compile(model) is an OptimizedModule, which keeps the author's module under this name.
    written = getattr(module, "_orig_mod", module) if is_optimized(module) else module
    return type(written).__name__

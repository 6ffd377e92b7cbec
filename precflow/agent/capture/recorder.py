"""The recorder: watches a model, step by step, and leaves no hook behind.

It puts the parts of capture together::

    module_hooks       forward of modules, and the call stack        level module
    torch_functions    torch's Python functions                      level api
    aten_operators     aten operators, in forward and backward       level operator
    collectives        what ranks send each other                    level api, else operator, else module
    module_gradients   gradients at modules (by way of graph)        phase backward
    parameters         gradients of parameters, optimizer steps      phases gradient, optimizer
    updates            which parameters are stepped at all           any phase but forward
      all of them -> record_lines (lines of JSON, tensors measured in batches) -> the writer of the dump
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

from precflow.agent.capture import autograd, collectives
from precflow.agent.capture.aten_operators import AtenMode, AtenRecorder
from precflow.agent.capture.call_sites import CallSites
from precflow.agent.capture.call_stack import CallStack
from precflow.agent.capture.calls import CaptureContext
from precflow.agent.capture.collectives import CollectiveRecorder, Report
from precflow.agent.capture.graph import Graph
from precflow.agent.capture.guard import Guard
from precflow.agent.capture.module_hooks import ModuleRecorder, RunningCall
from precflow.agent.capture.parameters import ParameterRecorder
from precflow.agent.capture.record_lines import Lines, Substitute
from precflow.agent.capture.torch_functions import FunctionMode, FunctionRecorder
from precflow.agent.capture.trail import Trail
from precflow.agent.capture.updates import Updates
from precflow.agent.capture.weights import Weights
from precflow.agent.capture.wrappers import find_boundary, is_compiled, list_compiled_functions, unwrap
from precflow.agent.contract import DETAILS, KEPT, LEVELS, PHASES
from precflow.agent.request import CaptureSection
from precflow.agent.selection import Selection

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.measurement_cache import Measurer
    from precflow.agent.dump.writer import WriteError, Writer


_EVERYTHING = CaptureSection()


class Recorder:
    """Records what a model computes.

    Args:
        writer: Where records and tensors go; ``None`` keeps content ids in memory only.
        capture: What is recorded, and how much is kept of it. In its scope ``(model)`` is the model itself, and ``(outside)``
            is what runs in no module.
        selection: What decides about each call, instead of scope and detail of `capture`.
        rank: Rank of this process.
        measurer: What measures tensors, the only part of capture that reads values; made here if not given.
        report: Called when a collective begins, see :class:`CollectiveRecorder`.
        compiles: Compiled modules run compiled code; ``False`` if compilation is switched off, so that their inside is seen.
        substitute: May replace what a recorded operator returned, for everything behind it, see ``record_lines.Substitute``.

    Attributes:
        updates: Which parameters the recorded steps have moved.

    Raises:
        ValueError: An unknown level, phase or detail.
        RuntimeError: Phase ``backward`` on a torch that does not show its graph.
    """

    def __init__(  # noqa: PLR0913  what is recorded, and what is only there for some drivers
        self,
        writer: Optional[Writer],
        capture: CaptureSection = _EVERYTHING,
        *,
        selection: Optional[Selection] = None,
        rank: int = 0,
        measurer: Optional[Measurer] = None,
        report: Optional[Report] = None,
        substitute: Optional[Substitute] = None,
        compiles: bool = True,
    ) -> None:
        levels, phases, detail = capture.level, capture.phase, capture.detail
        if detail not in DETAILS or not set(levels) <= set(LEVELS) or not set(phases) <= set(PHASES):
            expected = "expected some of %s, some of %s, one of %s" % (LEVELS, PHASES, DETAILS)
            raise ValueError("%s; got %r, %r, %r" % (expected, levels, phases, detail))
        if "backward" in phases and not autograd.shows_graph():
            raise RuntimeError("this torch does not show the graph of autograd: phase backward cannot be recorded")
        self._writer, self._compiles = writer, compiles
        self._weights = Weights()
        self._lines = Lines(
            writer,
            self._weights,
            detail=detail,
            rank=rank,
            fine=capture.fine,
            keep_weights=capture.weights == KEPT,
            measurer=measurer,
        )
        self._lines.substitute = substitute
        self._stack = CallStack(selection or Selection(capture.scope, detail=detail), rank)
        self._sites = CallSites(None if writer is None else writer.sites)
        self._guard = Guard()
        at_modules, forward = "module" in levels, "forward" in phases
        self._graph = Graph(self._lines, self._guard, self._stack, modules=at_modules) if "backward" in phases else None
        context = CaptureContext(self._lines, self._stack, self._sites, self._is_listening, self._guard)
        self.updates = Updates(active=writer is not None and set(phases) != {"forward"})
        self._parameters = ParameterRecorder(self._lines, self._stack, self._guard, updates=self.updates, phases=tuple(phases))
        self._modules = ModuleRecorder(
            context, recorded=at_modules and forward, graph=self._graph, before_model=self._parameters.read_copies
        )
        self._functions = FunctionRecorder(context) if "api" in levels and forward else None
        self._sees_operators = "operator" in levels
        self._of_ranks = report is not None
        # Dump whatever else is: nothing but its own record shows that a collective is missing on a side.
        level = next((each for each in ("api", "operator") if each in levels), "module")
        self._collectives = CollectiveRecorder(context, level=level, phases=phases, report=report)
        # Without level operator it records none, and only lets aten operators pass.
        self._aten = AtenRecorder(context, phases=phases if self._sees_operators else (), graph=self._graph)
        self._thread: Optional[int] = None  # the watching thread; None while paused
        self._has_begun = False
        self._modes: List[Union[FunctionMode, AtenMode]] = []
        self._undo = ExitStack()

    @property
    def records(self) -> int:
        """Number of records so far, in all steps: tensors that went into or came out of a recorded call."""
        return self._lines.records

    def describe_settings(self) -> Dict[str, Dict[str, str]]:
        """Return how the modules were set whose calls were recorded; those without settings are left out."""
        return {name: settings for name, settings in self._modules.settings.items() if settings}

    def describe_compiled(self) -> Dict[str, Any]:
        """Return what compiled code was run, as the header has it.

        ``unseen`` has the name of each compiled module -> number of modules inside it, and functions as ``function NAME`` -> 0.
        ``eager`` lists compiled modules and functions that ran as they were written.
        """
        functions = ["function " + name for name in list_compiled_functions(ran=self._compiles)]
        unseen, eager = dict(self._modules.unseen), list(self._modules.eager)
        if self._compiles:
            unseen.update(dict.fromkeys(functions, 0))
        else:
            eager += functions
        return {"unseen": unseen, "eager": eager}

    @property
    def module_calls(self) -> int:
        """Number of calls of the model and its modules so far, in all steps, recorded or not."""
        return self._modules.calls

    @property
    def phases(self) -> Set[str]:
        """Phases that have records so far, in all steps."""
        return self._lines.phases

    @property
    def contents(self) -> Dict[str, str]:
        """Content id of every output of this step, by identity text; ``""`` for weights and tensors without plain bytes."""
        with self._guard:
            return self._lines.output_contents

    @property
    def trail(self) -> Trail:
        """What is remembered for the case that the workload breaks."""
        return self._lines.trail

    @property
    def sites(self) -> List[str]:
        """Call sites so far, as the header lists them."""
        return self._sites.texts

    def begin_step(self, number: int) -> None:
        """Begin a step: counters, sources and ``contents`` start anew.

        Raises:
            WriteError: The step's files cannot be opened.
        """
        with self._guard:  # a step may begin while the modes listen
            if self._graph is not None:
                self._graph.end_step()
            self._collectives.begin_step(number)
            self._stack.begin_step(number)
            self._weights.renew()
            self._lines.begin_step(number)
            self._parameters.begin_step()
            self.updates.begin_step(number)
            if self._graph is not None:
                self._graph.begin_step(self._stack.outside)
        self._has_begun = True

    def end_step(self) -> None:
        """End a step, when everything that belongs to the update of its weights is done."""
        with self._guard:
            self.updates.end_step()

    def without_recording(self) -> Guard:
        """Return a context manager: operators that this thread runs inside its block are not recorded."""
        return self._guard

    @contextmanager
    def watch(
        self,
        model: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer] = None,
        masters: Sequence[Tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> Iterator[Recorder]:
        """Record what the model does in this thread until the block ends; then every hook and mode is off again.

        Exceptions of the model pass through unchanged. Step 0 begins here unless :meth:`begin_step` was called before.

        Args:
            model: The model.
            optimizer: Its steps are records in phase ``optimizer``. The operators that it runs are never recorded.
            masters: What the optimizer trains in place of weights in 16 bits, each with its weight, whose name it goes by.

        Raises:
            WriteError: The dump could not be written, even if the model's code has caught the exception itself.
        """
        try:
            with self.listen():
                self.add_model(model)
                self._parameters.name_masters(masters)
                if optimizer is not None:
                    self._undo.callback(self._parameters.watch_optimizer(optimizer, self.pause, self.resume))
                yield self
        except Exception as error:
            if self._failure is not None and error is not self._failure:  # the model turned our exception into its own
                raise self._failure from error
            raise
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Record what this thread does until the block ends, in the models that :meth:`add_model` adds.

        Raises:
            WriteError: Lines cannot be written.
        """
        if not self._has_begun:
            self.begin_step(0)
        with ExitStack() as self._undo:  # each entry is undone at the end, the last one first
            undo = self._undo
            self._parameters.forget()
            # Lines are written after the modes, the hooks and the graph are done.
            undo.callback(self.flush)
            undo.callback(self._stack.abandon)
            undo.callback(self._weights.clear)
            if self._graph is not None:
                undo.callback(self._graph.end_step)
            self._modes = []
            # A script joins its group when it likes, perhaps in its first step; of several ranks every one does.
            can_communicate = self._of_ranks or collectives.is_possible()
            if self._sees_operators or can_communicate:
                operators = AtenMode(self._aten, self._collectives)
                self._modes.append(operators)
                # Only the dispatch mode has to step aside: the guard switches torch functions off by other means.
                self._guard.modes.append(operators)
                undo.callback(self._guard.modes.remove, operators)
            if self._functions is not None:
                self._modes.append(FunctionMode(self._functions))
            self.resume()
            undo.callback(self.pause)
            for mode in self._modes:
                mode.start()
                undo.callback(mode.stop)
            yield

    def add_model(self, model: torch.nn.Module, name: str = "", running: Optional[RunningCall] = None) -> None:
        """Watch one more model until :meth:`listen` ends.

        Args:
            model: The model.
            name: Its name among several, which stands before the names of its modules.
            running: A call of one of its modules that has begun already.
        """
        written, called = unwrap(model), find_boundary(model) if self._compiles else unwrap(model)
        handed = [model] if running is None or unwrap(running.module) is not written else [model, running.module]
        if not self._compiles and any(is_compiled(find_boundary(each)) for each in handed):
            self._modules.eager[name] = None  # its wrapper is left out
        with self._guard:
            self._weights.learn(written, name)
        hooks = [
            *self._modules.attach(called, self._modes, name, running, compiles=self._compiles),
            *self._parameters.attach(written, name),
        ]
        for remove in hooks:
            self._undo.callback(remove)

    def add_parameters(self, model: torch.nn.Module, name: str = "") -> None:
        """Watch gradients and optimizer steps of a model until :meth:`listen` ends, and none of its calls.

        Args:
            model: The model; :meth:`add_model` may add it too, before or after.
            name: Its name among several.
        """
        for remove in self._parameters.attach(model, name):
            self._undo.callback(remove)

    def read_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the gradients that an optimizer begins its step with; :meth:`record_optimizer` is to follow."""
        self._parameters.read_gradients(optimizer)

    def record_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Record a step of an optimizer that has just ended."""
        self._parameters.record_step(optimizer)

    def flush(self) -> None:
        """Measure what waits, and write its lines.

        Raises:
            WriteError: A line cannot be written.
        """
        with self._guard:
            self._collectives.end_step()
            self._lines.flush()

    @property
    def _failure(self) -> Optional[WriteError]:
        return None if self._writer is None else self._writer.failure

    def pause(self) -> None:
        """Record nothing until :meth:`resume`."""
        self._thread = None

    def resume(self) -> None:
        """Record what this thread does."""
        self._thread = threading.get_ident()

    def _is_listening(self) -> bool:
        """Tell whether the forward is recorded now: in the watching thread, outside of backward, unless writing has failed.

        A forward inside backward is one that a checkpoint computes again; it was recorded the first time.
        """
        if self._thread != threading.get_ident() or autograd.is_in_backward():
            return False
        return self._writer is None or self._writer.failure is None

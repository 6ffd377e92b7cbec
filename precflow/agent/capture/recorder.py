"""The recorder: watches a model, step by step, and leaves nothing behind."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from precflow.agent.capture import autograd
from precflow.agent.capture.aten import AtenMode, AtenOperators
from precflow.agent.capture.call_sites import Sites
from precflow.agent.capture.call_stack import Frames
from precflow.agent.capture.functions import OperatorMode, Operators
from precflow.agent.capture.graph import Graph
from precflow.agent.capture.guard import Guard
from precflow.agent.capture.module_hooks import Modules
from precflow.agent.capture.parameters import Parameters
from precflow.agent.capture.record_lines import Lines
from precflow.agent.capture.weights import Weights
from precflow.agent.contract import DETAILS, LEVELS, PHASES
from precflow.agent.selection import Scope

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.tickets import Tickets
    from precflow.agent.dump.writer import WriteError, Writer


class Recorder:
    """Records what a model computes.

    Args:
        writer: Where records and tensors go; ``None`` keeps content ids in memory only.
        levels: Which calls are records: some of ``module``, ``api``, ``operator``.
        phases: When: some of ``forward``, ``backward``, ``gradient``, ``optimizer``. Level ``api`` has ``forward`` only.
        scope: Patterns of module names; ``(model)`` is the model itself, ``(outside)`` what runs in no module.
        detail: ``tensors`` stores the tensors; ``digest`` computes their content ids, ``statistics`` adds sums and counts, and
            ``sketch`` what the norm of a difference can be told from.
        package_roots: Folders that call sites are given relative to.
        weights: ``id(parameter) -> name`` where records are to name weights otherwise than the model does.
        rank: Rank of this process.
        selection: What answers for each call instead of ``scope`` and ``detail``.
        fine: Sketches keep the high and the low part of every value apart.
        contents: What measures tensors, the one part of capture that needs values; made here where none is given.

    Raises:
        ValueError: An unknown level, phase or detail.
        RuntimeError: Phase ``backward`` on a torch that does not show its graph.
    """

    def __init__(  # noqa: PLR0913  what a request may say about capture
        self,
        writer: Optional[Writer],
        *,
        levels: Sequence[str] = ("module", "api"),
        phases: Sequence[str] = ("forward",),
        scope: Sequence[str] = ("*",),
        detail: str = "tensors",
        package_roots: Sequence[str] = (),
        weights: Optional[Mapping[int, str]] = None,
        rank: int = 0,
        selection: Optional[Scope] = None,
        fine: bool = False,
        contents: Optional[Tickets] = None,
    ) -> None:
        if detail not in DETAILS or not set(levels) <= set(LEVELS) or not set(phases) <= set(PHASES):
            expected = "expected some of %s, some of %s, one of %s" % (LEVELS, PHASES, DETAILS)
            raise ValueError("%s; got %r, %r, %r" % (expected, levels, phases, detail))
        if "backward" in phases and not autograd.usable():
            raise RuntimeError("this torch does not show the graph of autograd: phase backward cannot be recorded")
        self._writer = writer
        self._weights = Weights(weights)
        self._lines = Lines(writer, self._weights, detail=detail, rank=rank, fine=fine, contents=contents)
        self._frames = Frames(selection or Scope(scope, detail=detail), rank)
        self._sites = Sites(package_roots, None if writer is None else writer.sites)
        self._guard = Guard()
        at_modules, forward = "module" in levels, "forward" in phases
        self._graph = Graph(self._lines, self._guard, self._frames, modules=at_modules) if "backward" in phases else None
        parts = (self._lines, self._frames, self._sites, self._listening, self._guard)
        self._modules = Modules(*parts, recorded=at_modules and forward, graph=self._graph)
        self._operators = Operators(*parts) if "api" in levels and forward else None
        self._aten = AtenOperators(*parts, phases=phases, graph=self._graph) if "operator" in levels else None
        self._parameters = Parameters(self._lines, self._frames, self._guard, phases=tuple(phases))
        self._thread: Optional[int] = None
        self._begun = False

    @property
    def records(self) -> int:
        """Number of records so far, in all steps: tensors that went into or came out of a recorded call."""
        return self._lines.records

    @property
    def contents(self) -> Dict[str, str]:
        """Content id of every output of this step, by identity text; ``""`` where it is a weight or has no plain bytes."""
        with self._guard:
            return self._lines.outputs

    @property
    def sites(self) -> List[str]:
        """Call sites so far, as the header lists them."""
        return self._sites.texts

    def step(self, number: int) -> None:
        """Begin a step: counters, sources and ``contents`` start anew.

        Raises:
            WriteError: The step's files cannot be opened.
        """
        with self._guard:  # a step may begin while the modes listen
            if self._graph is not None:
                self._graph.end()
            self._frames.begin(number)
            self._weights.renew()
            self._lines.begin(number)
            self._parameters.begin()
            if self._graph is not None:
                self._graph.begin(self._frames.outside)
        self._begun = True

    def unseen(self) -> Guard:
        """Return a context manager: what this thread runs inside its block is nobody's operator."""
        return self._guard

    @contextmanager
    def watch(self, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None) -> Iterator[Recorder]:
        """Record what the model does in this thread until the block is left; then every hook and mode is off again.

        Exceptions of the model pass through unchanged. Step 0 begins here unless :meth:`step` was called before.

        Args:
            model: The model.
            optimizer: Its steps are records in phase ``optimizer``; what it runs inside them is none in any case.

        Raises:
            WriteError: The dump could not be written, also where the model's code swallowed the exception itself.
        """
        try:
            with ExitStack() as undo:
                self._begin(model, optimizer, undo)
                yield self
        except Exception as error:
            if self._failure is not None and error is not self._failure:  # what the model made of it
                raise self._failure from error
            raise
        if self._failure is not None:
            raise self._failure

    def _begin(self, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer], undo: ExitStack) -> None:
        """Put everything on, each with what takes it off."""
        if not self._begun:
            self.step(0)
        self._weights.learn(model)
        undo.callback(self._flush)
        undo.callback(self._frames.abandon)
        undo.callback(self._weights.forget)
        if self._graph is not None:
            undo.callback(self._graph.end)
        modes: List[Union[OperatorMode, AtenMode]] = []
        if self._aten is not None:
            modes.append(AtenMode(self._aten))
            self._guard.modes = tuple(modes)
            undo.callback(setattr, self._guard, "modes", ())
        if self._operators is not None:
            modes.append(OperatorMode(self._operators))
        hooks = [*self._modules.attach(model, modes), *self._parameters.attach(model)]
        hooks += [self._parameters.follow(optimizer, self._rest, self._go_on)] if optimizer is not None else []
        for take_off in hooks:
            undo.callback(take_off)
        self._go_on()
        undo.callback(self._rest)
        for mode in modes:
            mode.start()
            undo.callback(mode.stop)

    def _flush(self) -> None:
        with self._guard:
            self._lines.flush()

    @property
    def _failure(self) -> Optional[WriteError]:
        return None if self._writer is None else self._writer.failure

    def _rest(self) -> None:
        self._thread = None

    def _go_on(self) -> None:
        self._thread = threading.get_ident()

    def _listening(self) -> bool:
        """Record in the watching thread only, not in backward (what a checkpoint computes again), not after a failure."""
        if self._thread != threading.get_ident() or autograd.in_backward():
            return False
        return self._writer is None or self._writer.failure is None

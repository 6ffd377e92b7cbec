"""The recorder: watches a model, step by step, and leaves nothing behind."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from torch._C import DisableTorchFunction

from precflow.agent.capture.frames import Frames
from precflow.agent.capture.lines import Lines
from precflow.agent.capture.modules import Modules
from precflow.agent.capture.operators import OperatorMode, Operators
from precflow.agent.capture.sites import Sites
from precflow.agent.capture.weights import Weights

if TYPE_CHECKING:
    import torch

    from precflow.agent.writer import WriteError, Writer

DETAILS = ("tensors", "digest")

_NO_BACKWARD = -1
_backward_task: Optional[Callable[[], int]] = getattr(sys.modules.get("torch._C"), "_current_graph_task_id", None)


class Recorder:
    """Records what a model computes.

    Args:
        writer: Where records and tensors go; ``None`` keeps content ids in memory only.
        levels: Which calls are records: ``module``, ``api`` or both.
        scope: Patterns of module names; ``(model)`` is the model itself, ``(outside)`` what runs in no module.
        detail: ``tensors`` stores the tensors; ``digest`` computes their content ids only.
        package_roots: Folders that call sites are given relative to.
        weights: ``id(parameter) -> name`` where records are to name weights otherwise than the model does.
        rank: Rank of this process.

    Raises:
        ValueError: An unknown level or detail.
    """

    def __init__(  # noqa: PLR0913  what a request may say about capture
        self,
        writer: Optional[Writer],
        *,
        levels: Sequence[str] = ("module", "api"),
        scope: Sequence[str] = ("*",),
        detail: str = "tensors",
        package_roots: Sequence[str] = (),
        weights: Optional[Mapping[int, str]] = None,
        rank: int = 0,
    ) -> None:
        if detail not in DETAILS or not set(levels) <= {"module", "api"}:
            raise ValueError("levels are module and api, details tensors and digest; got %r and %r" % (levels, detail))
        self._writer = writer
        self._weights = Weights(weights)
        self._lines = Lines(writer, self._weights, store=detail == "tensors", rank=rank)
        self._frames = Frames(scope)
        self._sites = Sites(package_roots)
        self._operators = Operators(self._lines, self._frames, self._sites, self._listening)
        self._modules = Modules(self._lines, self._frames, self._sites, self._listening, recorded="module" in levels)
        self._sees_operators = "api" in levels
        self._thread: Optional[int] = None
        self._begun = False

    @property
    def records(self) -> int:
        """Number of records so far, in all steps: tensors that went into or came out of a recorded call."""
        return self._lines.records

    @property
    def contents(self) -> Dict[str, str]:
        """Content id of every output of this step, by identity text; ``""`` where it is a weight or has no plain bytes."""
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
        self._frames.begin()
        with DisableTorchFunction():  # a step may begin while the mode listens
            self._weights.renew()
        self._lines.begin(number)
        self._begun = True

    @contextmanager
    def watch(self, model: torch.nn.Module) -> Iterator[Recorder]:
        """Record what the model does in this thread until the block is left; then every hook and mode is off again.

        Exceptions of the model pass through unchanged. Step 0 begins here unless :meth:`step` was called before.

        Raises:
            WriteError: The dump could not be written, also where the model's code swallowed the exception itself.
        """
        try:
            with ExitStack() as undo:
                self._begin(model, undo)
                yield self
        except Exception as error:
            if self._failure is not None and error is not self._failure:  # what the model made of it
                raise self._failure from error
            raise
        if self._failure is not None:
            raise self._failure

    def _begin(self, model: torch.nn.Module, undo: ExitStack) -> None:
        """Put everything on, each with what takes it off."""
        self._weights.learn(model)
        undo.callback(self._weights.forget)
        if not self._begun:
            self.step(0)
        mode = OperatorMode(self._operators) if self._sees_operators else None
        for take_off in self._modules.attach(model, mode):
            undo.callback(take_off)
        self._thread = threading.get_ident()
        undo.callback(self._rest)
        if mode is not None:
            mode.start()
            undo.callback(mode.stop)

    @property
    def _failure(self) -> Optional[WriteError]:
        return None if self._writer is None else self._writer.failure

    def _rest(self) -> None:
        self._thread = None

    def _listening(self) -> bool:
        """Record in the watching thread only, not in backward (what a checkpoint computes again), not after a failure."""
        if self._thread != threading.get_ident() or self._lines.failed:
            return False
        return _backward_task is None or _backward_task() == _NO_BACKWARD

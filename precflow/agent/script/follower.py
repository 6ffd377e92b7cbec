"""Follows a training run by nothing but the steps of its optimizers: no hook at any module, no mode.

What it needs is a hook before and after an optimizer's step, and a stand-in for ``Tensor.backward`` that reads the loss, the
only name of torch that is ever replaced; it stays in this process.
"""

from __future__ import annotations

import functools
import os
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, Protocol, Sequence

import torch
from torch._C import DisableTorchFunction
from torch.optim import optimizer as optimizers

from precflow.agent.script.launch import Stopper


class Listener(Protocol):
    """What is told about the steps of optimizers. ``step`` is how often the optimizer has stepped before."""

    def before_optimizer(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""

    def after_optimizer(self, step: int, optimizer: torch.optim.Optimizer, losses: Sequence[float]) -> None:
        """An optimizer has stepped; ``losses`` are what backward was called on since the step before."""

    def finish(self) -> None:
        """The run is about to be ended: what a script does when it is stopped cannot be known."""


class Follower:
    """Follows a run, and ends it when its last step is over. A context manager around the run.

    Args:
        last: Number of the last step, from 0. No optimizer steps twice in one step: that step is over when one is about to step
            once more.
        listener: Told what happens.

    Attributes:
        made: Number of steps that optimizers have made.
    """

    def __init__(self, last: int, listener: Listener) -> None:
        self.made = 0
        self._last, self._listener = last, listener
        self._losses: List[float] = []
        self._calls: Dict[int, int] = {}  # id of an optimizer -> how often it has stepped
        self._optimizers: List[torch.optim.Optimizer] = []  # keeps the ids valid
        self._depth = 0  # optimizers that call other optimizers
        self._stopper = Stopper()
        self._process = os.getpid()
        self._hooks = ExitStack()

    def __enter__(self) -> Follower:  # noqa: PYI034  Self came with Python 3.11
        """Set the hooks at optimizers, and the stand-in for ``Tensor.backward``."""
        self._hooks.callback(optimizers.register_optimizer_step_pre_hook(self._before_step).remove)
        self._hooks.callback(optimizers.register_optimizer_step_post_hook(self._after_step).remove)
        backward: Callable[..., None] = torch.Tensor.backward

        @functools.wraps(backward)  # function modes know it by its name
        def read_loss(tensor: torch.Tensor, *positional: Any, **keywords: Any) -> None:
            """Read a loss and go backward from it."""
            with DisableTorchFunction():
                if tensor.numel() == 1 and not tensor.is_meta and os.getpid() == self._process:
                    self._losses.append(float(tensor.detach()))
            backward(tensor, *positional, **keywords)

        torch.Tensor.backward = read_loss  # type: ignore[method-assign,assignment]
        self._hooks.callback(setattr, torch.Tensor, "backward", backward)
        return self

    def __exit__(self, *error: object) -> None:
        """Take everything off."""
        self._hooks.close()

    def _before_step(self, optimizer: torch.optim.Optimizer, positional: Any, keywords: Any) -> None:
        del positional, keywords
        if os.getpid() != self._process:
            return
        if not self._depth:
            step = self._calls.get(id(optimizer), 0)
            if step > self._last:
                self._listener.finish()
                self._stopper.stop()
            self._listener.before_optimizer(step, optimizer)
        self._depth += 1

    def _after_step(self, optimizer: torch.optim.Optimizer, positional: Any, keywords: Any) -> None:
        del positional, keywords
        if os.getpid() != self._process:
            return
        self._depth -= 1
        if self._depth:
            return
        step = self._calls.get(id(optimizer), 0)
        self._listener.after_optimizer(step, optimizer, self._losses)
        self._losses = []
        if not step:
            self._optimizers.append(optimizer)
        self._calls[id(optimizer)] = step + 1
        self.made += 1

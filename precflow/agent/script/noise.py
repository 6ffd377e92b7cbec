"""Disturbs a script as little as rounding does, to measure how far that carries.

The disturbances are those of :mod:`precflow.agent.session.noise`. A script changes modules and files while it runs, so each of
them has a process of its own. It begins with the first call of a model: data and first weights are made as in the plain run.
From then on everything is disturbed, optimizers included.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Set

import torch

from precflow.agent.contract import NOISES
from precflow.agent.session.disturbance import Directions
from precflow.agent.session.noise import disturb

if TYPE_CHECKING:
    from precflow.agent.capture.guard import Guard

_WEIGHTS = NOISES[-1]


class ScriptNoise:
    """One disturbance of a script; a context manager around its run.

    Args:
        name: One of ``contract.NOISES``; ``""`` for none.
        guard: Held while capture works, whose operators are left alone.
    """

    def __init__(self, name: str, guard: Guard) -> None:
        self._name, self._guard = name, guard
        self._has_begun = False
        self._directions = Directions()
        self._moved: Set[int] = set()  # ids of weights that were moved: models share some
        self._mode = ExitStack()

    def __enter__(self) -> ScriptNoise:  # noqa: PYI034  Self came with Python 3.11
        """Lie below every other mode, at first without doing anything."""
        if self._name and self._name != _WEIGHTS:
            mode = disturb(self._name, lambda: not self._has_begun or self._guard.is_held)
            self._guard.modes.append(mode)
            self._mode.enter_context(mode)
        return self

    def __exit__(self, *error: object) -> None:
        """Disturb nothing any more."""
        self._mode.close()

    def meet(self, model: torch.nn.Module) -> None:
        """Begin at the first model that is about to run; of every model, move the weights if that is the disturbance."""
        self._has_begun = True
        if self._name != _WEIGHTS:
            return
        for weight in model.parameters():
            if id(weight) not in self._moved:
                self._moved.add(id(weight))
                self._directions.move(weight.data)

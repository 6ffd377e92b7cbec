"""Which step and which micro batch a script is in, told from what can be seen from outside.

A step begins with the first forward after an optimizer has stepped, or when an optimizer steps for the second time without a
forward in between, as compiled code and closures make it. So two optimizers in a row (Muon and AdamW) are one step, and a GAN
has a step for each of its halves. A micro batch ends with a backward: the next forward begins another one. An iteration whose
step a gradient scaler skips is a step without an optimizer, so that steps are the same iterations on both sides.
"""

from __future__ import annotations

from typing import Dict, List, Set


class Steps:
    """Counts steps and micro batches.

    Attributes:
        number: The step that runs now, from 0; -1 before the first.
        finished: Number of steps that have ended: an optimizer has stepped in them, or a scaler has skipped it.
        has_stepped: An optimizer has stepped since the step began: nothing but further optimizers belongs to it.
        micro_batches: Step -> number of its micro batches.
        skipped: Steps in which gradients were dropped without an optimizer's step, in order, each as often as it happened.
        merged: Those of them that were seen too late to count as a step of their own: the next iteration belongs to them.
    """

    def __init__(self) -> None:
        self.number = -1
        self.finished = 0
        self.has_stepped = True
        self.micro_batches: Dict[int, int] = {}
        self.skipped: List[int] = []
        self.merged: List[int] = []
        self._has_gradients = False  # some came in this micro batch
        self._steppers: Set[int] = set()
        self._reached: Dict[int, int] = {}  # parameter -> the last micro batch of this step in which it got a gradient

    def begin_forward(self) -> bool:
        """Note that the forward of a model begins; return whether it begins a new step."""
        if self.has_stepped:
            self.begin()
            return True
        if self._has_gradients:
            self.micro_batches[self.number] += 1
            self._has_gradients = False
        return False

    def begin(self) -> None:
        """Begin a new step."""
        self.number += 1
        self.micro_batches[self.number] = 1
        self.has_stepped = self._has_gradients = False
        self._steppers.clear()
        self._reached.clear()

    def note_gradient(self, parameter: int, *, first: bool) -> None:
        """Note that backward brings the gradient of a parameter.

        Args:
            parameter: Its ``id``.
            first: It has no gradient yet: this one is not added to that of an earlier micro batch.
        """
        # It had one in this step, and now it has none: somebody has cleared it, and no optimizer has stepped.
        if first and self._reached.get(parameter, self._micro_batch) < self._micro_batch and not self._has_gradients:
            self.skipped.append(self.number)
            self.merged.append(self.number)
        self._reached[parameter] = self._micro_batch
        self._has_gradients = True

    @property
    def awaits_optimizer(self) -> bool:
        """Gradients came, and no optimizer has stepped since."""
        return self._has_gradients and not self.has_stepped

    def skip(self) -> None:
        """Note that the step has ended without its optimizer: a gradient scaler has dropped the gradients."""
        self.skipped.append(self.number)
        self.end_optimizer()

    @property
    def _micro_batch(self) -> int:
        return self.micro_batches.get(self.number, 1)

    def begin_optimizer(self, optimizer: int) -> bool:
        """Note that an optimizer begins its step; return whether that begins a new step.

        Args:
            optimizer: Its ``id``.
        """
        if self.number >= 0 and optimizer not in self._steppers:
            self._steppers.add(optimizer)
            return False
        self.begin()
        self._steppers.add(optimizer)
        return True

    def has_optimizer(self, optimizer: int) -> bool:
        """Tell whether an optimizer has stepped in this step, by its ``id``."""
        return optimizer in self._steppers

    def end_optimizer(self) -> None:
        """Note that an optimizer has stepped."""
        self.finished += not self.has_stepped
        self.has_stepped = True

"""One curve of one side: numbers by step, and what had to be cleaned up to get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
LARGEST_STEP = 2**53  # beyond it a float, which is what JSON has, is no exact step


@dataclass(frozen=True)
class Restart:
    """A place where the step numbers of a log go back.

    Attributes:
        after: The last step before it.
        at: The step with which the log goes on. What it said of this step and later ones before is dropped.
    """

    after: int
    at: int


@dataclass(frozen=True)
class Numbering:
    """How steps that begin anew in each epoch were numbered: (epoch - first epoch) x steps of an epoch + step in the epoch.

    Attributes:
        epoch_steps: Steps of an epoch.
        first_epoch: 0 or 1.
        first_step: The first step of an epoch, 0 or 1.
        is_stated: The log says how many steps an epoch has; otherwise they are the largest step that it names.
    """

    epoch_steps: int
    first_epoch: int
    first_step: int
    is_stated: bool = False


@dataclass(frozen=True, eq=False)
class Series:
    """A curve.

    Attributes:
        steps: Ascending, each once.
        values: One number a step; NaN and infinity stay what they are.
        source: Where it was read from, in words.
        restarts: Where the log went back to an earlier step; the later numbers count.
        begun_anew: How often the log went back to its first step or before, so that nothing of what it had said counts: a
            second run in the same file, or steps that are counted anew in each epoch.
        duplicates: Steps that the log names more than once without having gone back; the last number counts.
        notes: What else a reader should know, such as a line that was cut.
        numbering: How its steps were numbered through; ``None`` if the log does so itself.
    """

    steps: Steps
    values: Values
    source: str = ""
    restarts: tuple[Restart, ...] = ()
    begun_anew: int = 0
    duplicates: int = 0
    notes: tuple[str, ...] = ()
    numbering: Numbering | None = None

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def count_in_epoch(self, steps: Steps) -> Steps:
        """Return steps as the log counts them: anew in each epoch, if they were numbered through."""
        if self.numbering is None:
            return steps
        first = self.numbering.first_step
        return (steps - first) % self.numbering.epoch_steps + first


def make_series(
    steps: Sequence[float] | npt.NDArray[np.number],
    values: Sequence[float] | npt.NDArray[np.number],
    *,
    source: str = "",
    notes: Sequence[str] = (),
    numbering: Numbering | None = None,
) -> Series:
    """Return a curve from the numbers of a log, in the order in which they stand there.

    A run that is resumed from a checkpoint writes some steps again. Its step numbers go back, and from there on the later
    numbers count: whatever was said before of that step and those behind it belongs to a run that was given up.

    Args:
        steps: A whole number each.
        values: A number for each of them.
        source: Where they are from, in words.
        notes: What a reader should know about them.
        numbering: How steps that began anew in each epoch were numbered through.

    Raises:
        ValueError: A step is not a whole number.

    >>> resumed = make_series([1, 2, 3, 2, 3], [5.0, 4.0, 3.0, 4.5, 3.5])
    >>> resumed.values.tolist(), resumed.restarts
    ([5.0, 4.5, 3.5], (Restart(after=3, at=2),))
    """
    exact = np.asarray(steps, dtype=np.float64)
    whole = np.isfinite(exact) & (exact == np.floor(exact)) & (np.abs(exact) <= LARGEST_STEP)
    if not whole.all():
        raise ValueError(f"expected whole numbers as steps, got {exact[~whole][0]:g}")
    numbers, floats = exact.astype(np.int64), np.asarray(values, dtype=np.float64)
    change = np.diff(numbers)
    back = np.flatnonzero(change < 0)
    # A number counts if no later one is of the same step or of an earlier one.
    least_behind = np.append(np.minimum.accumulate(numbers[::-1])[::-1][1:], np.iinfo(np.int64).max)
    kept = numbers < least_behind
    return Series(
        steps=numbers[kept],
        values=floats[kept],
        source=source,
        restarts=tuple(Restart(int(numbers[place]), int(numbers[place + 1])) for place in back),
        begun_anew=int(np.count_nonzero(numbers[back + 1] <= numbers[0])) if len(back) else 0,
        duplicates=int(np.count_nonzero(change == 0)),
        notes=tuple(notes),
        numbering=numbering,
    )

"""Steps that begin anew in each epoch, numbered through, so that every step of a training run has one number.

A log that says how many steps an epoch has is numbered by that. Others are numbered by the largest step that they name, which
may differ between the two sides of a comparison, as where one logs every tenth step and the other every fiftieth:
:func:`agree` numbers both by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from precflow.curves.series import LARGEST_STEP, Numbering, Restart, Series, Steps, Values

NOTE = "its steps begin anew each epoch and are numbered through, the largest as the last of an epoch"


def number_through(
    steps: Values, epochs: Values, epoch_steps: Values | None = None, first_epoch: int | None = None
) -> tuple[Values, Numbering | None]:
    """Return steps that do not begin anew, and how they were numbered; they are as before, and ``None``, if they never did.

    Args:
        steps: In the order of the log.
        epochs: The epoch of each.
        epoch_steps: How many steps the epoch of each has; ``None`` if the log does not say it.
        first_epoch: Number of the first epoch of a run; ``None``: 0 if the log has an epoch 0, else 1.

    >>> steps, numbering = number_through(np.array([50.0, 100, 50, 100]), np.array([1.0, 1, 2, 2]))
    >>> steps.tolist(), numbering.epoch_steps
    ([50.0, 100.0, 150.0, 200.0], 100)
    >>> number_through(np.array([50.0, 100, 150]), np.array([1.0, 1, 2]))[1] is None
    True
    """
    if not len(steps) or not (are_whole(epochs) and are_whole(steps)):
        return steps, None
    first = first_epoch if first_epoch is not None else 0 if epochs.min() == 0 else 1
    first_step = 0 if steps.min() == 0 else 1
    if epoch_steps is not None:
        if not are_whole(epoch_steps) or epoch_steps.min() < 1:
            return steps, None
        numbering = Numbering(int(epoch_steps.max()), first, first_step, is_stated=True)
        return steps + (epochs - first) * epoch_steps, numbering
    rises = np.diff(epochs) > 0
    if not rises.any() or (np.diff(steps)[rises] > 0).any():
        return steps, None
    numbering = Numbering(int(steps.max()) + 1 - first_step, first, first_step)
    return steps + (epochs - first) * numbering.epoch_steps, numbering


def agree(series: Sequence[Series]) -> list[Series]:
    """Return curves of the same training whose steps were numbered through alike.

    >>> from precflow.curves.series import make_series
    >>> left, right = (number_through(np.array([10.0, most, 10]), np.array([1.0, 1, 2])) for most in (90, 100))
    >>> both = agree([make_series(steps, steps, numbering=numbering) for steps, numbering in (left, right)])
    >>> [one.steps.tolist() for one in both]
    [[10, 90, 110], [10, 100, 110]]
    """
    numberings = [one.numbering for one in series if one.numbering is not None]
    guessed = [numbering for numbering in numberings if not numbering.is_stated]
    if not guessed:
        return list(series)
    epoch_steps = max(numbering.epoch_steps for numbering in numberings)
    first_epoch = min(numbering.first_epoch for numbering in guessed)
    return [_number_anew(one, epoch_steps, first_epoch) for one in series]


def _number_anew(series: Series, epoch_steps: int, first_epoch: int) -> Series:
    old = series.numbering
    if old is None or old.is_stated or (old.epoch_steps, old.first_epoch) == (epoch_steps, first_epoch):
        return series

    def renumber(steps: Steps) -> Steps:
        """Return what steps of the old numbering are in the new one."""
        whole = (steps - old.first_step) // old.epoch_steps
        return steps + whole * (epoch_steps - old.epoch_steps) + (old.first_epoch - first_epoch) * epoch_steps

    ends = np.array([(one.after, one.at) for one in series.restarts], dtype=np.int64).reshape(-1, 2)
    return replace(
        series,
        steps=renumber(series.steps),
        restarts=tuple(Restart(after, at) for after, at in renumber(ends).tolist()),
        numbering=replace(old, epoch_steps=epoch_steps, first_epoch=first_epoch),
    )


def are_whole(numbers: Values) -> bool:
    """Tell whether all numbers are whole ones that can be steps, from 0 up."""
    return bool((np.isfinite(numbers) & (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers <= LARGEST_STEP)).all())

"""NaN, infinity and the ceiling of float16: which side has them, and whether the other side's values were too large."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
HALF_MAX = 65504.0
_ROUNDS_TO_INFINITY = 65520.0  # half way to the number that would come next in float16


@dataclass(frozen=True)
class Nonfinite:
    """What is not a number on either side.

    Attributes:
        reference: Elements that are NaN or infinite on the reference.
        target: The same on the target.
        target_only: Elements that are NaN or infinite on the target and a number on the reference.
        overflow_share: Share of elements that broke on the target, or stand at its ceiling of 65504, where the
            reference's value is beyond float16; 0 where none broke.
        reference_max: Largest finite magnitude on the reference.
    """

    reference: int
    target: int
    target_only: int
    overflow_share: float
    reference_max: float


def nonfinite(reference: Array, target: Array) -> Nonfinite:
    """Count what is not a number, and tell overflow of float16 from other causes.

    >>> nonfinite(np.array([7e4, 1.0]), np.array([np.inf, 1.0])).overflow_share
    1.0
    """
    here, there = np.isfinite(reference), np.isfinite(target)
    size = np.where(here, np.abs(reference), 0.0)
    broken = here & (~there | ((np.abs(target) == HALF_MAX) & (size != HALF_MAX)))
    beyond = broken & (size >= _ROUNDS_TO_INFINITY) & (size < np.finfo(np.float32).max / 2.0)
    return Nonfinite(
        reference=int(np.sum(~here)),
        target=int(np.sum(~there)),
        target_only=int(np.sum(here & ~there)),
        overflow_share=float(np.sum(beyond) / np.sum(broken)) if broken.any() else 0.0,
        reference_max=float(size.max(initial=0.0)),
    )


# Where attention is masked: the same places on both sides, or not.

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MaskPlaces:
    """Counts of masked elements.

    Attributes:
        reference: Masked on the reference.
        target: Masked on the target.
        different: Masked on exactly one side.
    """

    reference: int
    target: int
    different: int


def mask_places(reference: Mask, target: Mask) -> MaskPlaces:
    """Count masked places: fill values before a softmax, exact zeros behind it.

    Args:
        reference: True where the reference is masked.
        target: The same of the target, in the same shape.

    >>> mask_places(np.array([False, True]), np.array([False, False]))
    MaskPlaces(reference=1, target=0, different=1)
    """
    return MaskPlaces(
        reference=int(np.count_nonzero(reference)),
        target=int(np.count_nonzero(target)),
        different=int(np.count_nonzero(reference != target)),
    )

"""Where attention is masked: the same places on both sides, or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

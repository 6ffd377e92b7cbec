"""Elements that are no ordinary numbers, on each side: NaN and infinity, overflow of float16, and masked elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precflow.comparison.fused.value_classes import BoolArray, Floats

HALF_MAX = 65504.0
_ROUNDS_TO_INFINITY = 65520.0  # half way from HALF_MAX to 65536, the number that would come next in float16


@dataclass(frozen=True)
class NonfiniteCounts:
    """How many elements are not a number on either side, and how many of them float16 explains.

    Attributes:
        reference: Elements that are NaN or infinite on the reference.
        target: The same on the target.
        target_only: Elements that are NaN or infinite on the target and a number on the reference.
        overflow_share: Of the elements that broke on the target (not finite, or exactly 65504), the share whose
            reference value is beyond float16; 0 if none broke.
        reference_max: Largest finite magnitude on the reference.
    """

    reference: int
    target: int
    target_only: int
    overflow_share: float
    reference_max: float


def count_nonfinite(reference: Floats, target: Floats) -> NonfiniteCounts:
    """Count what is not a number, and distinguish overflow of float16 from other causes.

    A device either gives infinity beyond 65504 or saturates there, so exactly 65504 counts as broken too, unless the reference
    has it as well. A reference near the end of float32 is left out: it is a mask's fill value.

    >>> count_nonfinite(np.array([7e4, 1.0]), np.array([np.inf, 1.0])).overflow_share
    1.0
    """
    here, there = np.isfinite(reference), np.isfinite(target)
    size = np.where(here, np.abs(reference), 0.0)
    broken = here & (~there | ((np.abs(target) == HALF_MAX) & (size != HALF_MAX)))
    beyond = broken & (size >= _ROUNDS_TO_INFINITY) & (size < np.finfo(np.float32).max / 2.0)
    return NonfiniteCounts(
        reference=int(np.sum(~here)),
        target=int(np.sum(~there)),
        target_only=int(np.sum(here & ~there)),
        overflow_share=float(np.sum(beyond) / np.sum(broken)) if broken.any() else 0.0,
        reference_max=float(size.max(initial=0.0)),
    )


@dataclass(frozen=True)
class MaskedCounts:
    """How many elements are masked.

    Attributes:
        reference: Masked on the reference.
        target: Masked on the target.
        different: Masked on exactly one side.
    """

    reference: int
    target: int
    different: int


def count_masked(reference: BoolArray, target: BoolArray) -> MaskedCounts:
    """Count masked elements: fill values before a softmax, exact zeros after it.

    Args:
        reference: True where the reference is masked.
        target: The same of the target, in the same shape.

    >>> count_masked(np.array([False, True]), np.array([False, False]))
    MaskedCounts(reference=1, target=0, different=1)
    """
    return MaskedCounts(
        reference=int(np.count_nonzero(reference)),
        target=int(np.count_nonzero(target)),
        different=int(np.count_nonzero(reference != target)),
    )


def count_masked_weights(reference: Floats, target: Floats, smallest: float) -> MaskedCounts:
    """Count exact zeros of a softmax; as different where the other side is well above zero.

    A weight near the end of the type's range becomes zero by rounding, or on a device that flushes subnormal numbers.

    Args:
        reference: Output of the softmax on the reference.
        target: The same on the target, in the same shape.
        smallest: Smallest weight that rounding cannot make zero.

    >>> count_masked_weights(np.array([0.0, 0.5, 1e-9]), np.array([0.3, 0.5, 0.0]), 1e-6)
    MaskedCounts(reference=1, target=1, different=1)
    """
    here, there = reference == 0.0, target == 0.0
    different = (here & (np.abs(target) > smallest)) | (there & (np.abs(reference) > smallest))
    return MaskedCounts(int(np.count_nonzero(here)), int(np.count_nonzero(there)), int(np.count_nonzero(different)))

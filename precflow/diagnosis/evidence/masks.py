"""How a target's mask differs from the reference's: missing, inverted, moved, or that of another sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from precflow.comparison.fused.value_classes import BoolArray

_MOST_SHIFTED = 4


def describe_mask(reference: BoolArray, target: BoolArray) -> str:
    """Say how one mask comes from the other, ``""`` if no simple way is found.

    Args:
        reference: True where the reference is masked, ``(..., queries, keys)``.
        target: The same of the target, in the same shape.

    >>> describe_mask(np.array([[False, True]]), np.array([[True, False]]))
    'inverted'
    """
    if np.array_equal(reference, target):
        return ""
    return next((text for text, holds in _list_descriptions(reference, target) if holds), "")


def _list_descriptions(reference: BoolArray, target: BoolArray) -> Iterator[tuple[str, bool]]:
    """Yield each description and whether it holds; the most special ones first."""
    yield "missing", not target.any()
    yield "additional", not reference.any()
    yield "inverted", np.array_equal(target, ~reference)
    for shift in (places for size in range(1, _MOST_SHIFTED + 1) for places in (size, -size)):
        yield f"moved by {shift} along the keys", _is_moved(reference, target, shift)
    if reference.ndim > 1 and reference.shape[-1] == reference.shape[-2]:
        yield "transposed", np.array_equal(target, np.swapaxes(reference, -1, -2))
    yield "aligned to the other corner", _is_other_corner(reference, target)
    if reference.ndim > 2:
        yield "that of the first sample for all", np.array_equal(target, np.broadcast_to(reference[:1], target.shape))
    yield "partly missing", not (target & ~reference).any()
    yield "partly additional", not (reference & ~target).any()


def measure_masked_rows(masked: BoolArray, wrong: BoolArray) -> float | None:
    """Return the share of wrong rows that are masked everywhere; ``None`` if no row is wrong.

    >>> measure_masked_rows(np.array([[True, True], [False, True]]), np.array([True, False]))
    1.0
    """
    rows: BoolArray = np.all(masked.reshape(-1, masked.shape[-1]), axis=1)
    return float(np.mean(rows[wrong.reshape(-1)])) if wrong.any() else None


def _is_moved(reference: BoolArray, target: BoolArray, shift: int) -> bool:
    """Tell whether the masks are the same but for a shift along the last axis; what is shifted in is not compared."""
    size = reference.shape[-1]
    if abs(shift) >= size:
        return False
    if shift > 0:
        return np.array_equal(target[..., shift:], reference[..., :-shift])
    return np.array_equal(target[..., :shift], reference[..., -shift:])


def _is_other_corner(reference: BoolArray, target: BoolArray) -> bool:
    """Tell whether both are causal, one from the upper left and one from the lower right corner."""
    if reference.ndim < 2 or reference.shape[-1] == reference.shape[-2]:
        return False
    queries, keys = reference.shape[-2:]
    rows, columns = np.arange(queries)[:, None], np.arange(keys)
    left, right = columns > rows, columns > rows + keys - queries
    masks = [np.broadcast_to(one, reference.shape) for one in (left, right)]
    return any(np.array_equal(reference, one) and np.array_equal(target, other) for one, other in (masks, masks[::-1]))

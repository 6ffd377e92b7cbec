"""What is wrong in a cache of keys or values, told by head and position.

A cache has the shape ``[prompts, heads, positions, size]``. Its faults are those of whole slots: one was not written, holds
what belongs to another position, or two heads changed places. Each leaves exact copies of the right values elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

AXES = 4
_LISTED = 4
Array = npt.NDArray[Any]


def describe_slots(reference: Array, target: Array) -> str:
    """Say what the target's cache holds in place of the reference's; ``""`` if both are equal, or no caches.

    Args:
        reference: The reference's, of shape ``[prompts, heads, positions, size]``.
        target: The target's, of the same shape; right values are equal, or near them.

    >>> right = np.arange(16.0).reshape(1, 2, 4, 2)
    >>> describe_slots(right, np.where(np.arange(4)[:, None] == 2, 0.0, right))
    'position 2 of all heads is zeros'
    >>> describe_slots(right, right[:, ::-1])
    'heads 0 and 1 are exchanged'
    """
    if reference.shape != target.shape or reference.ndim != AXES:
        return ""
    here, there = (np.asarray(side, np.float64) for side in (reference, target))
    wrong: npt.NDArray[np.bool_] = np.asarray(~_near(here, there).all(axis=-1))  # prompts, heads, positions
    if not wrong.any():
        return ""
    return _describe_heads(here, there, wrong) or _describe_positions(here, there, wrong)


def is_pattern(slots: str) -> bool:
    """Tell whether :func:`describe_slots` has said what wrong slots hold, and not only that they differ."""
    return bool(slots) and not slots.endswith(("differ", "differs"))


def _near(here: Array, there: Array) -> npt.NDArray[np.bool_]:
    """Tell where values are the same but for rounding, of the size of each position's vector."""
    size = np.sqrt(np.mean(here**2, axis=-1, keepdims=True))
    near: npt.NDArray[np.bool_] = np.abs(here - there) <= 0.05 * size  # a slot of another token differs by its whole size
    return near


def _describe_heads(here: Array, there: Array, wrong: npt.NDArray[np.bool_]) -> str:
    heads = np.flatnonzero(wrong.any(axis=(0, 2)))
    if heads.size != 2:
        return ""
    first, second = heads
    places = wrong.any(axis=(0, 1))
    crossed = (_near(here[:, one, places], there[:, other, places]).all() for one, other in ((first, second), (second, first)))
    if not all(crossed):
        return ""
    at = "" if places.all() else f" at {_list('position', np.flatnonzero(places))}"
    return f"heads {first} and {second} are exchanged{at}"


def _describe_positions(here: Array, there: Array, wrong: npt.NDArray[np.bool_]) -> str:
    places, heads = np.flatnonzero(wrong.any(axis=(0, 1))), np.flatnonzero(wrong.any(axis=(0, 2)))
    of_heads = "of all heads" if heads.size == here.shape[1] else f"of {_list('head', heads)}"
    what, several = f"{_list('position', places)} {of_heads}", places.size > 1
    if not there[wrong].any():
        return f"{what} {'are' if several else 'is'} zeros"
    held = _find_source(here, there, wrong, places)
    distances = set() if held is None else {int(distance) for distance in held - places}
    if held is not None and not several:
        return f"{what} holds what belongs to position {held[0]}"
    if len(distances) == 1:
        (distance,) = distances
        where = "later" if distance > 0 else "earlier"
        return f"positions from {places[0]} on {of_heads} hold what belongs {abs(distance)} {where}"
    return f"{what} {'differ' if several else 'differs'}"


def _find_source(here: Array, there: Array, wrong: npt.NDArray[np.bool_], places: npt.NDArray[np.intp]) -> Array | None:
    """Return for each wrong position that whose right values it holds; ``None`` if one holds no other's."""
    found = []
    for place in places:
        prompts, heads = np.nonzero(wrong[:, :, place])
        held = there[prompts, heads, place][:, None]
        fits = _near(here[prompts, heads], np.broadcast_to(held, here[prompts, heads].shape)).all(axis=(0, 2))
        sources = np.flatnonzero(fits)
        if not sources.size:
            return None
        found.append(sources[np.argmin(np.abs(sources - place))])
    return np.array(found)


def _list(word: str, numbers: Sequence[int] | npt.NDArray[np.intp]) -> str:
    """Return ``position 3``, ``positions 3 to 7`` or ``positions 1, 4 and 6``."""
    known = [int(number) for number in numbers]
    if len(known) == 1:
        return f"{word} {known[0]}"
    if known == list(range(known[0], known[-1] + 1)):
        return f"{word}s {known[0]} to {known[-1]}"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"{word}s {', '.join(map(str, known[:_LISTED]))}{more}"

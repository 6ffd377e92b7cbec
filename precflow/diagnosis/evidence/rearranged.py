"""Whether the target has the right values at other places: another order along an axis, or two axes exchanged.

Values that only moved keep their bits, but for what another chip rounds otherwise. A mirrored kernel of a convolution gives
nearly the mirrored output where its input is smooth: 96 % of the error is explained, and the rest is far more than rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats

Order = npt.NDArray[np.intp]
_FITS = 0.9  # share of the error that a rearrangement has to explain
_LONGEST = 4096  # indices of an axis that are matched with each other
_LARGEST = 1 << 20  # elements that are looked at for that
_EXCHANGED = 2
_SMALL = 0.01  # square of an error, of the largest


@dataclass(frozen=True)
class Rearrangement:
    """How values were moved.

    Attributes:
        text: In words; ``""`` if no rearrangement explains the target.
        share: Share of the error's energy that it explains, 0 to 1.
        axis: The axis along which they were moved, counted from the end as ``-1``; 0 if several are involved.
        left: Norm of what it leaves of the error, relative to the norm of the values.
    """

    text: str = ""
    share: float = 0.0
    axis: int = 0
    left: float = 0.0


def find_rearrangement(reference: Floats, target: Floats, most: float = math.inf) -> Rearrangement | None:
    """Find the rearrangement of the reference that gives the target; ``None`` if nothing differs or a value is not finite.

    Args:
        reference: What is right.
        target: What the target gave, of the same shape.
        most: What it may leave, as :attr:`Rearrangement.left`: the rounding of the target's type, if ``reference`` is right at
            the target's own inputs.

    >>> find_rearrangement(np.array([[1.0, 2.0, 5.0]]), np.array([[5.0, 1.0, 2.0]])).text
    'moved by 1 along the last axis'
    """
    total = float(np.sum((target - reference) ** 2))
    if not 0.0 < total < np.inf:
        return None
    best = Rearrangement()
    for text, axis, candidate in _list_candidates(reference, target):
        rest = float(np.sum((target - candidate) ** 2))
        share = 1.0 - rest / total
        if share > best.share:
            size = float(np.sum(candidate**2))
            best = Rearrangement(text, share, axis, math.sqrt(rest / size) if size else math.inf)
    return best if best.share > _FITS and best.left <= most else Rearrangement("", best.share, left=best.left)


def _list_candidates(reference: Floats, target: Floats) -> Iterator[tuple[str, int, Floats]]:
    for axis in range(-1, -reference.ndim - 1, -1):
        order = _match_along(reference, target, axis)
        if order is not None:
            along = "the last axis" if axis == -1 else f"axis {axis}"
            yield f"{_describe_order(order)} along {along}", axis, np.take(reference, order, axis)
    for one in range(reference.ndim - 1):
        for other in range(one + 1, reference.ndim):
            exchanged = np.swapaxes(reference, one, other)
            yield f"axes {one} and {other} exchanged", 0, exchanged.reshape(reference.shape)
            yield f"axes {one} and {other} exchanged", 0, reference.reshape(exchanged.shape).swapaxes(one, other)
    if reference.ndim > 2:
        rows = reference.reshape(-1, reference.shape[-1])
        order = _match_along(rows, target.reshape(rows.shape), 0)
        if order is not None:
            yield f"{_describe_order(order)} along the rows of all samples", 0, rows[order].reshape(reference.shape)


def _match_along(reference: Floats, target: Floats, axis: int) -> Order | None:
    """Return, for each index of the target, the index of the reference that is nearest; ``None`` if that is no permutation.

    Equal tokens have nearly equal rows, of which another may be nearer. So an index stays where it is if its error there is
    small beside the largest, and all are moved alike if that leaves small errors alone.
    """
    size = reference.shape[axis]
    if not 1 < size <= _LONGEST:
        return None
    here, there = (np.moveaxis(array, axis, 0).reshape(size, -1) for array in (reference, target))
    step = -(-here.size // _LARGEST)
    here, there = here[:, ::step], there[:, ::step]
    distance = np.sum(here**2, axis=1)[None, :] - 2.0 * there @ here.T
    index, nearest = np.arange(size), np.argmin(distance, axis=1)
    error = np.sum((there - here) ** 2, axis=1)
    most = _SMALL * error.max()
    shift = int(np.bincount((index - nearest) % size).argmax())
    alike = np.roll(index, shift)
    if shift and np.sum((there - here[alike]) ** 2, axis=1).max() <= most:
        return alike
    order: Order = np.where(error <= most, index, nearest)
    if np.array_equal(order, np.arange(size)) or np.unique(order).size < size:
        return None
    return order


def _describe_order(order: Order) -> str:
    size = len(order)
    index = np.arange(size)
    moved = np.flatnonzero(order != index)
    if len(moved) == _EXCHANGED:
        return f"{moved[0]} and {moved[1]} exchanged"
    shift = int(index[0] - order[0]) % size
    if np.array_equal(order, (index - shift) % size):
        return "halves exchanged" if 2 * shift == size else f"moved by {shift if 2 * shift < size else shift - size}"
    in_parts = (_describe_parts(order, parts) for parts in (2, 3, 4) if size % parts == 0)
    return next((text for text in in_parts if text), "reversed" if np.array_equal(order, index[::-1]) else "in another order")


def _describe_parts(order: Order, parts: int) -> str:
    size = len(order)
    index, length = np.arange(size), size // parts
    if np.array_equal(order, index.reshape(parts, -1).T.reshape(-1)):
        return f"{parts} parts interleaved" if parts > _EXCHANGED else "halves interleaved (pairs in place of halves)"
    if np.array_equal(order, index.reshape(-1, parts).T.reshape(-1)):
        return f"taken apart into {parts}" if parts > _EXCHANGED else "pairs taken apart (halves in place of pairs)"
    blocks = order.reshape(parts, -1)
    if np.array_equal(blocks, blocks[:, :1] + np.arange(length)) and not (blocks[:, 0] % length).any():
        return f"{parts} blocks in the order {', '.join(str(int(start) // length) for start in blocks[:, 0])}"
    return ""

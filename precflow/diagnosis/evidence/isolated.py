"""Whether a few elements, rows or columns alone are wrong, and everything else is right.

Another formula, a narrower type or a switch changes nearly every value of an output. A race between threads, a block that a
kernel did not write, or a bit that hardware flipped changes a few, and all others stay within rounding of what is right. So a
curve or a factor that explains one wrong element of many explains nothing::

    1.00 2.00 3.00 9.17 5.00        1 of 5 elements, and no other curve

Arrays are float64 and finite. What is right is float64 at the call's own inputs, or the reference's output at equal ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from precflow.comparison.fused.value_classes import BoolArray, Floats

_FEWEST = 16  # elements of an output; of fewer, one is not a few
_FEWEST_LINES = 8  # rows or columns, the same
_FEW = 0.02  # share of the elements
_FEW_LINES = 0.1  # share of the rows or columns
_SEVERAL = 4  # wrong elements in a row from which on it is the row that is wrong
_ALIKE = 0.01  # share of the largest error of a line
_APART = 4.0  # times the largest error of the others that the smallest wrong one has
_ROOM, _ROOM_OF_16_BITS = 256.0, 8.0  # roundings that the others may be off: of long sums, and in types that are rounded to
_DIGITS_OF_16_BITS = 11
_OUTLIER = 2.0**16  # times a usual value: the fill of a mask, which hides all else in norms


@dataclass(frozen=True)
class Isolated:
    """The places that alone are wrong.

    Attributes:
        text: Such as ``1 of 1536 elements`` or ``1 of 24 rows``, and which for up to three.
        is_extreme: They are the largest or the smallest ones of all, by what is right or by the input: a function that is
            inexact there, or an overflow, would look the same.
    """

    text: str
    is_extreme: bool


def find_isolated(right: Floats, target: Floats, inputs: Sequence[Floats], digits: int) -> Isolated | None:
    """Find the few places that alone are wrong; ``None`` if there are none, or others are wrong too.

    Args:
        right: What is right.
        target: What the target has, of the same shape.
        inputs: Inputs of the call; those with the shape of the output, or of its rows, tell extreme places.
        digits: Bits of the significand of the output's type.

    >>> right = np.linspace(1.0, 2.0, 64).reshape(8, 8); target = right.copy(); target[3, 4] = 5.0
    >>> find_isolated(right, target, [], 24)
    Isolated(text='1 of 64 elements: [3, 4]', is_extreme=False)
    """
    size, error = np.abs(right), np.abs(target - right)
    if right.size < _FEWEST or not size.any():
        return None
    if np.array_equal(right, np.rint(right)) and np.array_equal(target, np.rint(target)):  # a decision between two near values
        return None
    usual = float(np.median(size[size > 0.0]))
    is_outlier = (size > _OUTLIER * usual) & (error <= usual)
    size, error = np.where(is_outlier, 0.0, size), np.where(is_outlier, 0.0, error)
    room = 2.0**-digits * (_ROOM_OF_16_BITS if digits <= _DIGITS_OF_16_BITS else _ROOM)
    wrong = _stand_out(error / (size + usual), room, _FEW, _FEWEST)
    found = [
        (name, axes, lines)
        for name, axes in _list_lines(right.ndim)
        if (lines := _find_wrong_lines(size, error, axes, room)) is not None
        and (_are_wrong_in_several(error, axes, lines) if wrong is None else _are_whole_lines(wrong, lines))
    ]
    if found:  # one sample in place of its rows
        name, axes, lines = min(found, key=lambda one: np.count_nonzero(one[2]))
        shape = [right.shape[axis] for axis in axes]
        values = [
            _measure_lines(one, axes)
            for one in (right, *inputs)
            if one.ndim == right.ndim and shape == [one.shape[axis] for axis in axes]
        ]
        return Isolated(_describe(lines.reshape(shape), name), any(_are_extreme(lines, one) for one in values))
    if wrong is None:
        return None
    values = [one for one in (right, *inputs) if one.shape == right.shape]
    extreme = any(_are_extreme(wrong, of) for one in values for of in (one, np.abs(one)))
    return Isolated(_describe(wrong, "elements"), extreme)


def _are_whole_lines(wrong: BoolArray, lines: BoolArray) -> bool:
    """Tell whether lines are wrong, and not single elements in them: several in each, or all in short ones (two samples)."""
    count, length = np.count_nonzero(wrong), wrong.size // lines.size
    needed = min(length, _SEVERAL)
    return bool(length > 1 and count >= _SEVERAL and count >= needed * np.count_nonzero(lines))


def _are_wrong_in_several(error: Floats, axes: tuple[int, ...], lines: BoolArray) -> bool:
    """Tell whether each line has several errors of the size of its largest: next to one wrong element, rounding is far less."""
    inside = np.moveaxis(error, axes, range(len(axes))).reshape(lines.size, -1)[lines]
    alike = np.count_nonzero(inside >= _ALIKE * inside.max(axis=1, keepdims=True), axis=1)
    return bool((alike >= min(inside.shape[1], _SEVERAL)).all() and inside.shape[1] > 1)


def _stand_out(ratios: Floats, room: float, few: float, fewest: int) -> BoolArray | None:
    """Return where ratios are beyond the room; ``None`` if nowhere, at more than a few, or without a gap to the others."""
    if ratios.size < fewest:
        return None
    wrong: BoolArray = ratios > room
    count = np.count_nonzero(wrong)
    if not 0 < count <= max(1.0, few * ratios.size):
        return None
    return wrong if ratios[wrong].min() >= _APART * ratios[~wrong].max() else None


def _list_lines(dimensions: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the kinds of lines of a tensor, each with the axes that number them."""
    if dimensions > 1:
        yield "rows", tuple(range(dimensions - 1))
        yield "columns", (dimensions - 1,)
    for axis in range(dimensions - 1) if dimensions > 2 else ():
        yield f"slices along axis {axis}", (axis,)


def _find_wrong_lines(size: Floats, error: Floats, axes: tuple[int, ...], room: float) -> BoolArray | None:
    norms, errors = _measure_lines(size, axes), _measure_lines(error, axes)
    known = norms[norms > 0.0]
    return _stand_out(errors / (norms + np.median(known)), room, _FEW_LINES, _FEWEST_LINES) if known.size else None


def _measure_lines(values: Floats, axes: tuple[int, ...]) -> Floats:
    others = tuple(axis for axis in range(values.ndim) if axis not in axes)
    norms: Floats = np.sqrt(np.sum(values * values, axis=others)).reshape(-1)
    return norms


def _are_extreme(wrong: BoolArray, values: Floats) -> bool:
    inside, outside = values[wrong], values[~wrong]
    return bool(inside.min() > outside.max() or inside.max() < outside.min())


def _describe(wrong: BoolArray, name: str) -> str:
    places = np.argwhere(wrong)
    which = ", ".join(str(place.tolist() if place.size > 1 else int(place[0])) for place in places[:3])
    return f"{len(places)} of {wrong.size} {name}: {which}{', ...' if len(places) > 3 else ''}"

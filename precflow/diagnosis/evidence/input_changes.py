"""How the target's input comes from the reference's: values that were moved, and values that were scaled.

Pictures with their channels in another order, another normalisation, channels last, a flip, a crop that starts a pixel later,
a batch that is padded on the other side: each of these gives the target's input from the reference's exactly, or to rounding
if numbers were multiplied. Nothing is said of anything less, such as another interpolation or other pictures::

    target[:, c] = factor[c] * reference[:, order[c]] + amount[c]

A few thousand elements say which change it may be, and all of them whether it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from precflow.dumps.dtypes import FLOATS, Array, float_facts, name_of

CHANNELS, SCALE, LAYOUT, FLIP, ORDER, SHIFT, PADDING, TOKENS = KINDS = (
    "channels", "scale", "layout", "flip", "order", "shift", "padding", "tokens",
)  # fmt: skip
SAMPLES = "samples"
LARGEST = 1 << 23
"""Most elements of an input that are looked at."""

_Numbers = npt.NDArray[Any]  # int64 or float64
_Coordinates = list[npt.NDArray[np.intp]]
_SAMPLE = 4096  # elements that say which change it may be
_BLOCK = 1 << 20  # elements that are read at once
_MOST_AXES = 5
SMALL_AXES = (3, 4)  # sizes of axes whose order is looked for
_SIMPLER = 1 / 16  # of the rounding that is allowed: how far fewer numbers may be from factor and amount together
_MOST_PADDINGS = 4  # values at the ends of rows that may be padding
_MOST_GROUPS = 128  # with a factor each
_LEAST_OF_GROUP = 16  # values for a factor and an amount
_LEAST_OF_CHANNEL = 128  # values that tell whether a channel has its own
_DEPENDENT = 0.5  # square of the correlation
_USUAL = (255.0, 1 / 255, 127.5, 1 / 127.5, 32768.0, 1 / 32768)  # of bytes and of 16-bit sound
_PICTURE_WORDS = ("uint8", "int8", "int16")  # whole numbers that are rounded numbers: pixels, samples of sound
_HALF_STEP = 0.6  # half a whole number, and a little for what is computed with it
_AVERAGE = 1 / 8  # of the most that rounding may do
_ROUNDINGS = 4.0  # of the coarser type: those of both sides, each of a value, a product and a sum
BEYOND = 8.0  # how many times their rounding the sides are apart, at least
_BITS = 64.0  # that agree, so that it is no chance; for each factor and amount as many again
_BITS_OF_TOKENS, _TOKENS = 15.0, 6  # a short text has not more, and nothing is fitted
_MUCH = 0.25  # share of the values that are the same one
_MOST_ADDED = 1 << 62  # so that a sum of whole numbers stays one
_SHIFTS = (1, -1, 2, -2)
_LEAST_SHIFTED = 8  # indices of an axis
_SHOWN, _SHOWN_SAMPLES = 4, 8


@dataclass(frozen=True)
class InputChange:
    """What gives the target's input from the reference's.

    Attributes:
        kinds: Some of ``KINDS``, in the order in which they are done.
        text: In words, with the numbers.
    """

    kinds: tuple[str, ...]
    text: str


class Fit(NamedTuple):
    """Factor and amount of each group of values, and the axis that they are groups of; -1 for one group.

    Attributes:
        factors: 1 for values that only moved.
        amounts: What is added to them.
        axis: Axis of the target.
    """

    factors: tuple[float, ...] = (1.0,)
    amounts: tuple[float, ...] = (0.0,)
    axis: int = -1


def find_input_change(reference: Array, target: Array) -> InputChange | None:
    """Find the change that gives all of the target's input from the reference's; ``None`` if there is none, or it is no proof.

    Values that move keep their bits. Values that are multiplied agree to the rounding of the coarser of the two types.

    >>> picture = np.arange(48, dtype=np.float32).reshape(3, 4, 4)
    >>> find_input_change(picture, picture[::-1]).text, find_input_change(picture, picture / 255).text
    ('channels in the order 2, 1, 0', 'each value multiplied by 0.003922')
    """
    with np.errstate(all="ignore"):
        return _find_change(reference, target)


def _find_change(reference: Array, target: Array) -> InputChange | None:
    here, there = _read(reference), _read(target)
    if here is None or there is None or (here.shape == there.shape and np.array_equal(here, there)):
        return None
    are_whole = here.dtype.kind == there.dtype.kind == "i"
    are_tokens = are_whole and not {reference.dtype.name, target.dtype.name} & {*_PICTURE_WORDS} and here.ndim <= 2
    if are_tokens and (found := _find_more_tokens(here, there) or _find_padding(here, there)):
        return found
    sides = _BothInputs(here, there, _find_rounding(reference.dtype), _find_rounding(target.dtype), are_tokens)
    return sides.find_moved() or (None if sides.are_near else sides.find_scaled())


def _read(array: Array) -> _Numbers | None:
    """Return an input as int64 or float64; ``None`` if it says nothing: empty, all the same, not finite, or too large."""
    if not 1 <= array.ndim <= _MOST_AXES or not 1 < array.size <= LARGEST or array.dtype.kind in "cmMOSU":
        return None
    if array.dtype.kind in "iub" and array.dtype != np.uint64:
        wide: _Numbers = array.astype(np.int64)
    else:
        wide = array.astype(np.float64)
        if not np.isfinite(wide).all():
            return None
    return None if (wide == wide.flat[0]).all() else wide


class _Rounding(NamedTuple):
    """How far a value of a type may be from the number that it stands for: relative to it, and whatever it is."""

    relative: float
    absolute: float


def _find_rounding(dtype: np.dtype[Any]) -> _Rounding:
    name = name_of(dtype)
    if name in FLOATS:
        return _Rounding(2.0 ** -float_facts(name).digits, float_facts(name).smallest)
    return _Rounding(0.0, _HALF_STEP if name in _PICTURE_WORDS else 0.0)


# Tokens


def _find_padding(reference: _Numbers, target: _Numbers) -> InputChange | None:
    """Find out whether rows have the same tokens, with padding at the other end or of another length."""
    here, there = (np.atleast_2d(side) for side in (reference, target))
    if len(here) != len(there) or reference.ndim != target.ndim:
        return None
    values, counts = np.unique([*here[:, 0], *here[:, -1], *there[:, 0], *there[:, -1]], return_counts=True)
    for value in map(int, values[np.argsort(-counts, kind="stable")][:_MOST_PADDINGS]):
        rows = [[_strip(row, value) for row in side] for side in (here, there)]
        if not all(np.array_equal(one.tokens, two.tokens) for one, two in zip(*rows, strict=True)):
            continue
        if not _say_something(np.concatenate([row.tokens for row in rows[0]]), _BITS_OF_TOKENS, _TOKENS):
            continue
        ends = [("left" if any(row.before for row in side) else "") + ("right" if any(row.after for row in side) else "")
                for side in rows]  # fmt: skip
        if sorted(ends) == ["left", "right"]:
            return InputChange((PADDING,), f"padded on the {ends[1]} in place of the {ends[0]}, with {value}")
        if here.shape[1] != there.shape[1] and "leftright" not in ends and (not all(ends) or ends[0] == ends[1]):
            return InputChange((PADDING,), f"padded to {there.shape[1]} in place of {here.shape[1]}, with {value}")
    return None


class _Row(NamedTuple):
    """A row without its padding, and how much of it stood before and behind."""

    tokens: _Numbers
    before: int
    after: int


def _strip(row: _Numbers, value: int) -> _Row:
    kept = np.flatnonzero(row != value)
    if not len(kept):
        return _Row(row[:0], 0, 0)
    first, last = int(kept[0]), int(kept[-1])
    return _Row(row[first : last + 1], first, len(row) - 1 - last)


def _find_more_tokens(reference: _Numbers, target: _Numbers) -> InputChange | None:
    """Find out whether all rows of one side have one token more at an end, the same in all rows."""
    if reference.ndim != target.ndim or reference.shape[:-1] != target.shape[:-1]:
        return None
    if abs(reference.shape[-1] - target.shape[-1]) != 1:
        return None
    is_more = target.shape[-1] > reference.shape[-1]
    longer, shorter = (target, reference) if is_more else (reference, target)
    for where, rest, further in (("start", longer[..., 1:], longer[..., 0]), ("end", longer[..., :-1], longer[..., -1])):
        value = further.flat[0]
        is_padding = (shorter[..., 0 if where == "start" else -1] == value).any()
        if np.array_equal(rest, shorter) and (further == value).all() and not is_padding:
            if not _say_something(shorter, _BITS_OF_TOKENS, _TOKENS):
                return None
            how = "more" if is_more else "less"
            return InputChange((TOKENS,), f"one token {how} at the {where}, {value}")
    return None


def _say_something(values: _Numbers, bits: float, distinct: int) -> bool:
    """Tell whether values are so many and so different that they are not equal to others by chance."""
    return np.unique(values).size >= distinct and values.size * _count_bits(values) >= bits


def _count_bits(values: _Numbers) -> float:
    """Return the entropy of values as they are distributed, in bits a value."""
    shares = np.unique(values, return_counts=True)[1] / values.size
    return float(-np.sum(shares * np.log2(shares)))


# Moved and scaled values


@dataclass(frozen=True)
class _Move:
    """Values at other places: the reference's axes in another order, of which some are then reversed.

    Attributes:
        axes: For each axis of the target, that of the reference.
        flipped: Axes of the target.
    """

    axes: tuple[int, ...]
    flipped: tuple[int, ...] = ()

    @property
    def parts(self) -> int:
        """How much it does; 0 for what leaves all values where they are."""
        return (self.axes != tuple(range(len(self.axes)))) + len(self.flipped)

    def apply(self, reference: _Numbers) -> _Numbers:
        """Return a view of the reference with its values at the target's places."""
        return np.flip(reference.transpose(self.axes), self.flipped)

    def describe(self) -> list[tuple[str, str]]:
        """Return kind and words of each part."""
        parts = []
        count = len(self.axes)
        if self.axes != tuple(range(count)):
            changed = [axis for axis in range(count) if self.axes[axis] != axis]
            last, first = (tuple(order) for order in _order_channels(count)) if count > 2 else ((), ())
            text = f"axes in the order {', '.join(map(str, self.axes))}"
            if self.axes == last:
                text = "channels last in place of first"
            elif self.axes == first:
                text = "channels first in place of last"
            elif len(changed) == 2:
                text = f"axes {changed[0]} and {changed[1]} exchanged"
            parts.append((LAYOUT, text))
        if len(self.flipped) == 1:
            parts.append((FLIP, f"flipped along axis {self.flipped[0]}"))
        elif self.flipped:
            parts.append((FLIP, f"flipped along axes {self.flipped[0]} and {self.flipped[1]}"))
        return parts


def _order_channels(count: int) -> tuple[list[int], list[int]]:
    """Return the order of axes that puts channels last, and the one that puts them first, behind the axis of samples."""
    batch = list(range(count - 3)) if count < _MOST_AXES else [0]
    rest = list(range(len(batch), count))
    return [*batch, *rest[1:], rest[0]], [*batch, rest[-1], *rest[:-1]]


class _BothInputs:
    """Both inputs, and a sample of the target's places.

    Args:
        reference: Its input, as int64 or float64.
        target: The target's.
        one: Rounding of the reference's type.
        two: Rounding of the target's type.
        are_tokens: Whole numbers that stand for no amount, of which no text has many.
    """

    def __init__(self, reference: _Numbers, target: _Numbers, one: _Rounding, two: _Rounding, are_tokens: bool) -> None:  # noqa: FBT001  private
        self._reference, self._target = reference, target
        self._roundings = (one, two)
        self._relative = max(one.relative, two.relative)
        self._bits, self._distinct = (_BITS_OF_TOKENS, _TOKENS) if are_tokens else (_BITS, 2 * _TOKENS)
        self._places = self._sample(np.arange(target.size) if target.size <= _SAMPLE else None)
        self._values = target[tuple(self._places)]
        # Most of a tensor may be one value, such as silence or a border: it says little, however often it is there.
        values, counts = np.unique(self._values, return_counts=True)
        is_most = counts.max() > _MUCH * counts.sum()
        self._telling = self._values != values[counts.argmax()] if is_most else np.ones(len(self._values), bool)

    def _sample(self, flat: npt.NDArray[np.intp] | None) -> _Coordinates:
        if flat is None:
            flat = np.random.default_rng(0).choice(self._target.size, _SAMPLE, replace=False)
        return list(np.unravel_index(flat, self._target.shape))

    @property
    def are_near(self) -> bool:
        """The sides are so near that another rounding, or a little noise, is all that there is to say."""
        if self._reference.shape != self._target.shape:
            return False
        there, here = (side[tuple(self._places)][self._telling].astype(np.float64) for side in (self._target, self._reference))
        limit = self._find_limit(here, there, 1.0, 0.0)
        return bool(np.mean(np.abs(there - here)) <= BEYOND * np.mean(limit)) if len(here) else True

    def find_moved(self) -> InputChange | None:
        """Find a change that only moves values, each with its bits."""
        if not self._can_tell(self._telling):
            return None
        for move in self._list_moves():
            view = move.apply(self._reference)
            if move.parts and np.array_equal(view[tuple(self._places)], self._values) and self._is_exact(view):
                return _describe(move, (), -1, Fit(), self._target.ndim)
            for axis in self._list_small_axes():
                order = self._find_exact_order(view, axis)
                if order and self._is_exact(view.take(order, axis)):
                    return _describe(move, order, axis, Fit(), self._target.ndim)
        return self._find_shuffled() or self._find_written_anew() or self._find_shifted()

    def find_scaled(self) -> InputChange | None:
        """Find a change that multiplies values or adds an amount, after a move or without one."""
        if self._target.dtype.kind == self._reference.dtype.kind == "i" and not any(each.absolute for each in self._roundings):
            return self._find_added()
        for move in self._list_moves():
            view = move.apply(self._reference)
            values = view[tuple(self._places)].astype(np.float64)
            fit = self._fit(values, self._telling, 1, is_still=bool(move.parts))
            if (
                fit is not None
                and self._is_one_enough(values, fit)
                and self._holds(view, (), found := Fit((fit[0],), (fit[1],)))
            ):
                return _describe(move, (), -1, found, self._target.ndim)
            for axis in self._list_small_axes():
                for order, found in self._fit_orders(view, axis):
                    if self._holds(view, order, found):
                        return _describe(move, order, axis, found, self._target.ndim)
            for axis in range(self._target.ndim) if not move.parts else ():
                each = self._fit_groups(values, axis)
                if each is not None and self._holds(view, (), each):
                    return _describe(move, (), -1, each, self._target.ndim)
        return None

    def _list_moves(self) -> Iterator[_Move]:
        """Yield the moves that give the target's shape, those that do least first."""
        here, there = self._reference.shape, self._target.shape
        count = len(here)
        if sorted(here) != sorted(there):
            return
        still = tuple(range(count))
        orders = [still, *_list_orders(count)] if count > 1 else [still]
        orders = [axes for axes in dict.fromkeys(orders) if tuple(here[axis] for axis in axes) == there]
        long = [axis for axis in range(count) if there[axis] > 1]
        flips = [(), *((axis,) for axis in reversed(long)), *itertools.combinations(long, 2)]
        moves = sorted((_Move(axes, flipped) for axes in orders for flipped in flips), key=lambda move: move.parts)
        yield from (move for move in moves if count < _MOST_AXES or move.parts < 2)

    def _list_small_axes(self) -> list[int]:
        """Return the axes of the target that may hold channels, the likeliest first."""
        count = self._target.ndim
        likely = list_channel_axes(count)
        small = [axis for axis in range(count) if self._target.shape[axis] in SMALL_AXES and count > 1]
        return sorted(small, key=lambda axis: (axis not in likely, likely.index(axis) if axis in likely else axis))

    def _find_exact_order(self, view: _Numbers, axis: int) -> tuple[int, ...]:
        """Return the order of an axis in which the reference has the sampled values; empty if it is none, or nothing moves."""
        size, at = self._target.shape[axis], self._places[axis]
        order = []
        for index in range(size):
            places = [each[at == index] for each in self._places]
            values = self._values[at == index]
            others = sorted(range(size), key=lambda other: other != index)
            same = (other for other in others if np.array_equal(_read_at(view, places, axis, other), values))
            order.append(next(same, -1))
        return tuple(order) if sorted(order) == list(range(size)) and order != sorted(order) else ()

    def _is_exact(self, view: _Numbers) -> bool:
        return bool(np.array_equal(view, self._target))

    def _find_shuffled(self) -> InputChange | None:
        """Find the same samples in another order along the first axis."""
        here, there = self._reference, self._target
        if here.shape != there.shape or there.ndim == 1:
            return None
        places: dict[bytes, list[int]] = {}
        for number, sample in enumerate(here):
            places.setdefault(sample.tobytes(), []).append(number)
        order = [left.pop(0) if (left := places.get(sample.tobytes())) else -1 for sample in there]
        if -1 in order:
            return None
        listed = ", ".join([*map(str, order[:_SHOWN_SAMPLES]), *(["..."] if len(order) > _SHOWN_SAMPLES else [])])
        return InputChange((ORDER,), f"samples in the order {listed}")

    def _find_written_anew(self) -> InputChange | None:
        """Find the same values in the same order in another shape, also with axes exchanged before: a reshape for a permute."""
        here, there = self._reference, self._target
        if here.size != there.size:
            return None
        if here.shape != there.shape and np.array_equal(here.ravel(), there.ravel()):
            shapes = [" x ".join(map(str, side.shape)) for side in (there, here)]
            return InputChange((LAYOUT,), f"the same values in the same order, as {shapes[0]} in place of {shapes[1]}")
        flat = np.ravel_multi_index(tuple(self._places), there.shape)
        for axes in _list_orders(here.ndim) if here.ndim > 1 else ():
            view = here.transpose(axes)
            if not np.array_equal(view[np.unravel_index(flat, view.shape)], self._values):
                continue
            if np.array_equal(view.reshape(there.shape), there):
                order = ", ".join(map(str, axes))
                return InputChange((LAYOUT,), f"values of the axes in the order {order}, in the shape without it")
        return None

    def _find_shifted(self) -> InputChange | None:
        """Find values that begin one or two places later or earlier, along one axis or two."""
        here, there = self._reference, self._target
        if here.shape != there.shape:
            return None
        long = [axis for axis in range(there.ndim) if there.shape[axis] >= (_LEAST_SHIFTED if there.ndim > 2 else _TOKENS)]
        singles = [((axis, by),) for axis in reversed(long) for by in _SHIFTS]
        doubles = [(one, two) for (one,), (two,) in itertools.combinations(singles, 2) if one[0] != two[0]]
        for shifts in (*singles, *doubles):
            kept = np.ones(len(self._values), bool)
            moved = list(self._places)
            for axis, by in shifts:
                moved[axis] = self._places[axis] - by
                kept &= (moved[axis] >= 0) & (moved[axis] < there.shape[axis])
            if not self._can_tell(kept & self._telling):
                continue
            if not np.array_equal(here[tuple(each[kept] for each in moved)], self._values[kept]):
                continue
            cuts = [tuple(_cut(shifts, axis, side) for axis in range(there.ndim)) for side in (1, -1)]
            if np.array_equal(there[cuts[0]], here[cuts[1]]):
                ways = " and ".join(f"by {by} along axis {axis}" for axis, by in sorted(shifts))
                return InputChange((SHIFT,), f"shifted {ways}, the rest equal")
        return None

    def _find_added(self) -> InputChange | None:
        """Find one whole number that is added to all values: ids or positions that count from another start."""
        if self._reference.shape != self._target.shape or not self._can_tell(self._telling):
            return None
        amount = int(self._target.flat[0]) - int(self._reference.flat[0])
        if abs(amount) >= _MOST_ADDED or not np.array_equal(self._reference + amount, self._target):
            return None
        return InputChange((SCALE,), f"each value with {amount} added")

    def _can_tell(self, telling: npt.NDArray[np.bool_], bits: float = 0.0) -> bool:
        """Tell whether the sampled values that are meant prove something, if they are all equal to what they should be."""
        return _say_something(self._values[telling], bits or self._bits, self._distinct)

    # Factors and amounts

    def _find_limit(self, here: _Numbers, there: _Numbers, factor: float, amount: float) -> _Numbers:
        """Return how far each value may be off, for the rounding of both sides, of what is computed between, and of amounts."""
        typical = abs(factor) * float(np.median(np.abs(here))) + float(np.median(np.abs(there))) if len(here) else 0.0
        limit = _ROUNDINGS * self._relative * (np.abs(factor * here) + np.abs(there) + abs(amount) + typical)
        return np.asarray(limit + self._find_absolute(factor))

    def _find_absolute(self, factor: float) -> float:
        return abs(factor) * self._roundings[0].absolute + self._roundings[1].absolute

    def _is_rounding(self, left: _Numbers, limit: _Numbers, factor: float) -> bool:
        """Tell whether an error is nowhere over its limit and far below it on average, as rounding is."""
        absolute = self._find_absolute(factor)
        return bool((left <= limit).all() and np.mean(left) <= _AVERAGE * np.mean(limit - absolute) + absolute)

    def _fit(
        self, values: _Numbers, chosen: npt.NDArray[np.bool_], groups: int, *, is_still: bool = False
    ) -> tuple[float, float] | None:
        """Return factor and amount that give the chosen sampled values of the target from others; ``None`` if nothing does.

        The simplest that fits: none of both if something else has changed, a factor, an amount, both.
        """
        here, there = values[chosen], self._values[chosen].astype(np.float64)
        both = _solve(here, there) if len(here) >= _LEAST_OF_GROUP else None
        if both is None:
            return None
        tried = [(1.0, 0.0)] if is_still else []
        tried += [
            (snap_factor(float(np.dot(here, there) / np.dot(here, here)), self._relative), 0.0),
            (1.0, float(np.mean(there - here))),
            both,
        ]
        for factor, amount in tried:
            limit = self._find_limit(here, there, factor, amount)
            is_as_good = _are_alike(here, (factor, amount), both, limit)
            if factor and is_as_good and self._is_rounding(np.abs(factor * here + amount - there), limit, factor):
                spread = float(np.median(np.abs(there - np.median(there))))
                typical = float(np.median(limit))
                width = math.log2(spread / typical) if spread > typical > 0 else 0.0 if typical else math.inf
                bits = len(here) * min(_count_bits(there), width)
                return (factor, amount) if bits >= _BITS + 2 * _BITS / groups else None
        return None

    def _is_one_enough(self, values: _Numbers, fit: tuple[float, float]) -> bool:
        """Tell whether one factor and one amount say as much as those of each channel, which may be nearly the same."""
        for axis in self._list_small_axes():
            for index in range(self._target.shape[axis]):
                chosen = (self._places[axis] == index) & self._telling
                here, there = values[chosen], self._values[chosen].astype(np.float64)
                own = _solve(here, there) if len(here) >= _LEAST_OF_CHANNEL else None
                if own is not None and not _are_alike(here, fit, own, self._find_limit(here, there, *fit)):
                    return False
        return True

    def _fit_orders(self, view: _Numbers, axis: int) -> Iterator[tuple[tuple[int, ...], Fit]]:
        """Yield orders of an axis, each with what its indices are multiplied by: the axis as it is last only if it must be."""
        size, at = self._target.shape[axis], self._places[axis]
        found: dict[tuple[int, int], tuple[float, float]] = {}
        for index in range(size):
            chosen = (at == index) & self._telling
            for other in range(size):
                fit = self._fit(_read_at(view, self._places, axis, other).astype(np.float64), chosen, size, is_still=True)
                if fit is not None:
                    found[index, other] = fit
        orders = [
            order
            for order in itertools.permutations(range(size))
            if all((index, other) in found for index, other in enumerate(order))
        ]
        fits = {order: _group([found[pair] for pair in enumerate(order)], axis) for order in orders}
        # Colours that are all alike, as in a grey picture, have every order: the one with the fewest numbers counts.
        for order in sorted(orders, key=lambda order: (_count_numbers(fits[order]), order)):
            still = order == tuple(range(size))
            yield (() if still else order), fits[order]

    def _fit_groups(self, values: _Numbers, axis: int) -> Fit | None:
        """Return a factor and an amount for each index of an axis; ``None`` if they are too many, or do not fit."""
        size, at = self._target.shape[axis], self._places[axis]
        if not 2 <= size <= min(_MOST_GROUPS, self._target.size // (2 * _LEAST_OF_GROUP)) or size in SMALL_AXES:
            return None
        fits = []
        for index in range(size):
            fit = self._fit(values, (at == index) & self._telling, size)
            if fit is None:
                return None
            fits.append(fit)
        return _group(fits, axis)

    def _holds(self, view: _Numbers, order: tuple[int, ...], fit: Fit) -> bool:
        """Tell whether factors and amounts give every value of the target, to rounding."""
        groups = range(len(fit.factors)) if fit.axis >= 0 else (None,)
        for index, factor, amount in zip(groups, fit.factors, fit.amounts, strict=True):
            here, there = view, self._target
            if index is not None:
                here, there = here.take(order[index] if order else index, fit.axis), there.take(index, fit.axis)
            for one, two in _list_blocks(here, there):
                wide = one.astype(np.float64).ravel(), two.astype(np.float64).ravel()
                if (np.abs(factor * wide[0] + amount - wide[1]) > self._find_limit(*wide, factor, amount)).any():
                    return False
        return True


def snap_factor(factor: float, rounding: float) -> float:
    """Return a usual factor that another is equal to, to rounding."""
    return next((usual for usual in _USUAL if abs(factor - usual) <= 2 * rounding * usual), factor)


def _solve(here: _Numbers, there: _Numbers) -> tuple[float, float] | None:
    """Return factor and amount of the least squares; ``None`` if the values hardly depend on each other."""
    middles = float(here.mean()), float(there.mean())
    one, two = here - middles[0], there - middles[1]
    square, product = float(np.dot(one, one)), float(np.dot(one, two))
    if not product**2 > _DEPENDENT * square * float(np.dot(two, two)):
        return None
    return product / square, middles[1] - product / square * middles[0]


def _are_alike(here: _Numbers, one: tuple[float, float], two: tuple[float, float], limit: _Numbers) -> bool:
    """Tell whether two factors and amounts give values that are much nearer to each other than rounding is allowed to be."""
    apart = np.mean(np.abs((one[0] - two[0]) * here + one[1] - two[1]))
    return bool(apart <= max(_SIMPLER, 1 / math.sqrt(len(here))) * np.mean(limit))


def _group(fits: Sequence[tuple[float, float]], axis: int) -> Fit:
    return Fit(tuple(factor for factor, _ in fits), tuple(amount for _, amount in fits), axis)


def _count_numbers(fit: Fit) -> int:
    return sum(factor != 1.0 for factor in fit.factors) + sum(amount != 0.0 for amount in fit.amounts)


def _list_orders(count: int) -> list[tuple[int, ...]]:
    """Return orders of axes: all of up to four; of five two exchanged, or one at another place."""
    still = tuple(range(count))
    if count < _MOST_AXES:
        return [axes for axes in itertools.permutations(still) if axes != still]
    orders = []
    for one, two in itertools.permutations(still, 2):
        exchanged, moved = list(still), [axis for axis in still if axis != one]
        exchanged[one], exchanged[two] = two, one
        moved.insert(two, one)
        orders += [tuple(exchanged), tuple(moved)]
    return list(dict.fromkeys(orders))


def list_channel_axes(count: int) -> list[int]:
    """Return the axes where the channels of pictures are, first or last."""
    return {3: [0, 2], 4: [1, 3], 5: [1, 2, 4]}.get(count, [])


def _read_at(view: _Numbers, places: _Coordinates, axis: int, index: int) -> _Numbers:
    """Return values at places, with one index for all along an axis."""
    values: _Numbers = view[(*places[:axis], np.full_like(places[axis], index), *places[axis + 1 :])]
    return values


def _cut(shifts: Sequence[tuple[int, int]], axis: int, side: int) -> slice:
    """Return the indices of an axis that are on both sides of a shift: the target's for ``side`` 1, the reference's for -1."""
    by = side * dict(shifts).get(axis, 0)
    return slice(by, None) if by > 0 else slice(None, by or None)


def _list_blocks(one: _Numbers, two: _Numbers) -> Iterator[tuple[_Numbers, _Numbers]]:
    """Yield both in blocks along their longest axis."""
    axis = int(np.argmax(one.shape))
    parts = min(one.shape[axis], -(-one.size // _BLOCK))
    yield from zip(np.array_split(one, parts, axis), np.array_split(two, parts, axis), strict=True)


def _describe(move: _Move, order: tuple[int, ...], axis: int, fit: Fit, count: int) -> InputChange:
    """Put a change into words: what moves, the order of the channels, then factors and amounts."""
    parts = move.describe()
    if order:
        listed = ", ".join(map(str, order))
        name = _name_axis(axis, count)
        parts.append((ORDER if name == SAMPLES else CHANNELS, f"{name} in the order {listed}"))
    parts += [(SCALE, text) for text in describe_factors(fit, count)]
    return InputChange(tuple(dict.fromkeys(kind for kind, _ in parts)), "; ".join(text for _, text in parts))


def describe_factors(fit: Fit, count: int) -> list[str]:
    """Return what factors and amounts do in words, for a tensor of so many axes."""
    texts = [[_show(values) for values in group] for group in (fit.factors, fit.amounts)]
    names = ["each value" if len({*group}) == 1 else _name_axis(fit.axis, count) for group in texts]
    short = [group[:1] if len({*group}) == 1 else group for group in texts]
    times, plus = (", ".join([*group[:_SHOWN], *(["..."] if len(group) > _SHOWN else [])]) for group in short)
    if times != "1" and plus != "0" and names[0] == names[1]:
        return [f"{names[0]} multiplied by {times}, then {plus} added"]
    said = [f"{names[0]} multiplied by {times}"] if times != "1" else []
    return [*said, *([f"{names[1]} with {plus} added"] if plus != "0" else [])]


def _name_axis(axis: int, count: int) -> str:
    if axis == 0 and count > 3:
        return SAMPLES
    return "channels" if axis in list_channel_axes(count) else f"axis {axis}"


def _show(value: float) -> str:
    return f"{value:.4g}"

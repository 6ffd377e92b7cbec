"""Choices that show in the gradients alone: to which of several elements the gradient of an operator goes.

``amax``, ``maximum``, ``clamp``, ``relu``, ``quantile`` or a max pooling return numbers, and where two of their inputs are as
near as noise, these agree between two correct devices whichever was taken. The gradient goes to the element that was taken::

                    a         b         c       amax            gradient of a, b, c
    reference    0.3101    0.7031    0.7031    0.7031             0     g/2   g/2
    target       0.3101    0.7031    0.7070    0.7070             0      0     g       a near tie

What was taken follows from the recorded inputs, so it is computed again here for both sides and compared, by the margin and the
noise of :mod:`precflow.judgement.near_ties`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from precflow.dumps.dtypes import Array
from precflow.judgement.near_ties import ChoiceInput, Flips, base_name, bound_noise, find_scale

_REDUCED = {"amax": 1.0, "amin": -1.0, "max": 1.0, "min": -1.0}
_OF_TWO = frozenset("max min maximum minimum fmax fmin".split())
_POOLED = {"max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3}
_EDGES = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}
_CLAMPS = frozenset({"clamp", "clip"})
_MEDIANS = frozenset({"median", "nanmedian"})
_SORTING = frozenset({"quantile", "nanquantile", "msort"})


class _Rows(NamedTuple):
    """Values that were chosen among, ``[choices, candidates]``: -inf where there is no candidate."""

    reference: Array
    target: Array


def is_known(operator: str) -> bool:
    """Tell whether :func:`examine` knows to which elements the gradient of an operator goes."""
    return base_name(operator) in {*_REDUCED, *_OF_TWO, *_POOLED, *_EDGES, *_CLAMPS, *_MEDIANS, *_SORTING}


def examine(operator: str, arguments: Mapping[str, str], inputs: Mapping[str, ChoiceInput]) -> Flips | None:
    """Say for how many choices the gradient goes to other elements than on the reference, and by how much.

    Args:
        operator: Its name as recorded.
        arguments: Its other arguments as text.
        inputs: Its inputs by index.

    Returns:
        The flips, or ``None`` if the operator is not known, or its arguments cannot be read.
    """
    given = list(inputs.values())
    if not given or any(one.reference.shape != one.target.shape or not one.reference.size for one in given):
        return None
    try:
        return _examine(base_name(operator), arguments, given)
    except ValueError:  # an argument that is no number, or windows that do not fit
        return None


def _examine(name: str, arguments: Mapping[str, str], given: Sequence[ChoiceInput]) -> Flips | None:
    if name in _SORTING or name in _MEDIANS:
        return _examine_sorted(name, arguments, given)
    if len(given) > 1:
        return _examine_pair(given[0], given[1]) if name in _OF_TWO else None
    if name in _CLAMPS:
        ends = _read_edge("min", arguments, "1", -math.inf), _read_edge("max", arguments, "2", math.inf)
        return _examine_edges(given[0], *ends, closed=True)
    if name in _EDGES:
        low, high = _EDGES[name]
        ends = _read_edge("min_val", arguments, "1", low), _read_edge("max_val", arguments, "2", high)
        return _examine_edges(given[0], *ends, closed=False)
    if name in _REDUCED:
        return _examine_rows(given[0], _reduce(given[0], _REDUCED[name], arguments))
    return _examine_rows(given[0], _pool(given[0], _POOLED[name], arguments)) if name in _POOLED else None


def _examine_rows(given: ChoiceInput, rows: _Rows) -> Flips:
    """Compare which candidates of each row are its largest."""
    y, x = rows
    taken = [values == values.max(axis=1, keepdims=True) for values in (y, x)]
    which = np.flatnonzero((taken[0] != taken[1]).any(axis=1))
    y, x, mine, theirs = y[which], x[which], taken[0][which], taken[1][which]
    # How far behind, on the reference, is what the target took; and ahead, on the target, what the reference took as well.
    with np.errstate(invalid="ignore"):
        behind = np.where(theirs, y.max(axis=1, keepdims=True) - y, 0.0).max(axis=1, initial=0.0)
        ahead = np.where(mine, x.max(axis=1, keepdims=True) - x, 0.0).max(axis=1, initial=0.0)
        moved = np.where(mine | theirs, np.abs(y - x), 0.0).max(axis=1, initial=0.0)
    size = np.where(mine, np.abs(y), 0.0).max(axis=1, initial=0.0)
    return _summarize(given, np.maximum(behind, ahead), 2 * bound_noise(given, moved, size), len(rows.reference))


def _examine_pair(one: ChoiceInput, other: ChoiceInput) -> Flips:
    """Compare which of two values is the larger at each place; equal ones share the gradient."""
    y, b = np.broadcast_arrays(one.reference.astype(np.float64), other.reference.astype(np.float64))
    x, a = np.broadcast_arrays(one.target.astype(np.float64), other.target.astype(np.float64))
    flipped = np.sign(y - b) != np.sign(x - a)
    y, b, x, a = y[flipped], b[flipped], x[flipped], a[flipped]
    noise = bound_noise(one, np.abs(y - x), np.abs(y)) + bound_noise(other, np.abs(b - a), np.abs(b))
    return _summarize(one, np.maximum(np.abs(y - b), np.abs(x - a)), noise, flipped.size)


def _examine_edges(given: ChoiceInput, low: float, high: float, *, closed: bool) -> Flips:
    """Compare which elements lie between two edges, where their gradient passes; with ``closed`` on an edge as well."""
    y, x = given.reference.astype(np.float64), given.target.astype(np.float64)
    passes = [(low <= values) & (values <= high) if closed else (low < values) & (values < high) for values in (y, x)]
    flipped = passes[0] != passes[1]
    y, x = y[flipped], x[flipped]
    margins = [np.minimum(np.abs(values - low), np.abs(values - high)) for values in (y, x)]
    return _summarize(given, np.maximum(*margins), bound_noise(given, np.abs(y - x), np.abs(y)), flipped.size)


def _examine_sorted(name: str, arguments: Mapping[str, str], given: Sequence[ChoiceInput]) -> Flips | None:
    if name in _MEDIANS:
        return _examine_median(given[0], name, arguments)
    return _examine_order(given[0], _find_ranks(name, arguments, given), name)


def _examine_median(given: ChoiceInput, name: str, arguments: Mapping[str, str]) -> Flips | None:
    """Compare which elements equal the median of all; along a dimension, a record shows the index that was taken."""
    if {"1", "dim"} & set(arguments):
        return None
    y, x = (values.astype(np.float64).reshape(-1) for values in (given.reference, given.target))
    if not _are_comparable(y, x, name):
        return None
    number = np.isfinite(y)
    y, x = y[number], x[number]
    middle = max(y.size - 1, 0) // 2
    top = [np.sort(values)[middle : middle + 1] for values in (y, x)]
    mine, theirs = y == top[0], x == top[1]
    if not (mine != theirs).any():
        return _summarize(given, np.zeros(0), np.zeros(0), 1)
    margin = max(np.abs(y - top[0])[theirs].max(), np.abs(x - top[1])[mine].max())
    noise = 2 * bound_noise(given, np.abs(y - x).max(keepdims=True), np.abs(y).max(keepdims=True))
    return _summarize(given, np.full(1, margin), noise, 1)


class _Ranks(NamedTuple):
    """What a function takes from its sorted values.

    Attributes:
        axis: Along which it sorts; ``None`` for all elements as one row.
        quantiles: Shares of the way from the smallest to the largest; ``None`` if it takes all values.
        interpolation: Which neighbours are taken where a quantile lies between two elements.
    """

    axis: int | None
    quantiles: Array | None = None
    interpolation: str = "linear"

    def list_taken(self, counts: Array, dtype: np.dtype[Any]) -> Array:
        """Return the ranks that are taken from rows of so many numbers, ``[rows, taken]``, computed in torch's type."""
        if self.quantiles is None:
            return np.arange(int(counts.max(initial=0))) + np.zeros_like(counts)[:, None]
        ranks = self.quantiles.astype(dtype) * np.maximum(counts - 1, 0).astype(dtype)[:, None]
        below, above = np.floor(ranks), np.ceil(ranks)
        by_name = {"lower": [below], "higher": [above], "nearest": [np.rint(ranks)]}
        return np.concatenate(by_name.get(self.interpolation, [below, above]), axis=1).astype(np.int64)


def _find_ranks(name: str, arguments: Mapping[str, str], given: Sequence[ChoiceInput]) -> _Ranks | None:
    """Return what a function that sorts takes; ``None`` if its quantiles are not the same on both sides."""
    if name == "msort":
        return _Ranks(0)
    text = arguments.get("dim", arguments.get("2", "None"))
    if len(given) > 1:
        if not np.array_equal(given[1].reference, given[1].target):
            return None
        quantiles = given[1].reference.reshape(-1)
    else:
        quantiles = np.array([float(arguments.get("q", arguments.get("1", "")))])
    return _Ranks(None if text == "None" else int(text), quantiles, arguments.get("interpolation", "linear").strip("'\""))


def _examine_order(given: ChoiceInput, wanted: _Ranks | None, name: str) -> Flips | None:
    """Compare which elements stand at the ranks that a function takes from sorted values; equal ones stand in any order."""
    if wanted is None or not _are_comparable(given.reference, given.target, name):
        return None

    def to_rows(values: Array) -> Array:
        """Return the values to sort as rows."""
        wide = values.astype(np.float64)
        if wanted.axis is None or not wide.ndim:
            return wide.reshape(1, -1)
        return np.moveaxis(wide, wanted.axis, -1).reshape(-1, wide.shape[wanted.axis])

    y, x = (np.nan_to_num(to_rows(values), nan=np.inf, posinf=np.inf) for values in (given.reference, given.target))
    ranks = wanted.list_taken(np.isfinite(y).sum(axis=1), given.reference.dtype)
    orders = [np.argsort(values, axis=1, kind="stable") for values in (y, x)]
    mine, theirs = (np.take_along_axis(order, ranks, axis=1) for order in orders)
    flipped = mine != theirs
    for values, order in zip((y, x), orders, strict=True):
        ordered = np.take_along_axis(values, order, axis=1)
        equal = np.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 1)))
        flipped |= np.take_along_axis(equal[:, 1:] | equal[:, :-1], ranks, axis=1)
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.take_along_axis(y, mine, axis=1) - np.take_along_axis(y, theirs, axis=1))
    number = np.isfinite(y)
    moved = np.abs(np.where(number, y, 0.0) - np.where(number, x, 0.0)).max(axis=1, initial=0.0)
    noise = 2 * bound_noise(given, moved, np.where(number, np.abs(y), 0.0).max(axis=1, initial=0.0))
    return _summarize(given, apart[flipped], np.broadcast_to(noise[:, None], flipped.shape)[flipped], flipped.size)


def _are_comparable(reference: Array, target: Array, name: str) -> bool:
    """Tell whether only numbers are ordered, and the NaN that ``nanmedian`` and ``nanquantile`` leave out are the same ones."""
    ignored = np.isnan(reference) if name.startswith("nan") else np.zeros(reference.shape, dtype=bool)
    return all(np.array_equal(~np.isfinite(values), ignored) for values in (reference, target)) and not ignored.all()


def _summarize(given: ChoiceInput, margins: Array, noise: Array, total: int) -> Flips:
    if not margins.size:
        return Flips(0, total, 0.0, 0.0, near=True)
    unit, worst = find_scale(given.reference) or 1.0, int(np.argmax(margins - noise))
    near = bool((margins <= noise * (1 + 1e-9)).all())
    return Flips(int(margins.size), total, float(margins[worst]) / unit, float(noise[worst]) / unit, near=near)


def _reduce(given: ChoiceInput, sign: float, arguments: Mapping[str, str]) -> _Rows:
    """Return the rows that a reduction goes over; all elements as one row if no dimension is named."""
    named = [int(number) for number in re.findall(r"-?\d+", arguments.get("dim", arguments.get("1", "")))]
    count = given.reference.ndim
    axes = sorted({axis % count for axis in named}) if named and count else list(range(count))
    length = math.prod(given.reference.shape[axis] for axis in axes)

    def to_rows(values: Array) -> Array:
        """Return the candidates of each result as rows, so that the largest is taken."""
        return np.moveaxis(sign * values.astype(np.float64), axes, range(count - len(axes), count)).reshape(-1, length)

    return _Rows(to_rows(given.reference), to_rows(given.target))


def _pool(given: ChoiceInput, dimensions: int, arguments: Mapping[str, str]) -> _Rows:
    """Return the windows of a max pooling."""
    if arguments.get("ceil_mode", "False") != "False":
        raise ValueError("windows that reach beyond the end")
    size = _read_sizes(arguments.get("kernel_size", arguments.get("1", "")), dimensions)
    stride = _read_sizes(arguments.get("stride", arguments.get("2", "")), dimensions) or size
    padding = _read_sizes(arguments.get("padding", arguments.get("3", "0")), dimensions)
    dilation = _read_sizes(arguments.get("dilation", arguments.get("4", "1")), dimensions)
    if not size:
        raise ValueError("no size of a window")
    reach = [step * (each - 1) + 1 for each, step in zip(size, dilation, strict=True)]
    outside = [(0, 0)] * (given.reference.ndim - dimensions) + [(each, each) for each in padding]
    axes = tuple(range(given.reference.ndim - dimensions, given.reference.ndim))

    def to_rows(values: Array) -> Array:
        """Return the windows as rows, with -inf where they reach beyond the edge."""
        padded = np.pad(values.astype(np.float64), outside, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=axes)
        every = (slice(None),) * (windows.ndim - 2 * dimensions)
        chosen = windows[
            (*every, *(slice(None, None, step) for step in stride), *(slice(None, None, step) for step in dilation))
        ]
        return chosen.reshape(-1, math.prod(size))

    return _Rows(to_rows(given.reference), to_rows(given.target))


def _read_sizes(text: str, dimensions: int) -> list[int]:
    """Return the numbers of an argument, one number for all dimensions as often as there are; none for ``None``."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return numbers * dimensions if len(numbers) == 1 else numbers


def _read_edge(name: str, arguments: Mapping[str, str], position: str, otherwise: float) -> float:
    text = arguments.get(name, arguments.get(position, "None"))
    return otherwise if text == "None" else float(text)

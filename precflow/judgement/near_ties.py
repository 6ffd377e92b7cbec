"""Near ties: did two sides choose differently only because the values they chose between are as near as their noise?

An operator that chooses (``argmax``, ``topk``, ``x > 0``, ``round``) turns a tiny difference of its inputs into another index
or another number. Two correct devices differ there now and then. For example, the router of a mixture of experts takes the two
largest of four scores::

                 expert 0   expert 1   expert 2   expert 3     topk(2)
    reference     0.3101     0.2473     0.1952     0.2474      [0, 3]
    target        0.3101     0.2474     0.1952     0.2473      [0, 1]    a near tie: the margin of 0.0001 is within the noise
    target        0.3101     0.2473     0.1952     0.2474      [0, 2]    a fault: expert 2 is far behind

The *margin* of such a choice is the distance, on the reference, of the value that the target chose from the one that the
reference chose. The *noise* is what the values themselves differ by between the sides, or their noise floor if that is larger.
No value moves by more than the largest difference ``D`` of its row, and sorted values move by no more than that either, so
that a correct operator never shows a margin above ``2 D``. To be called noise the difference must not stand out of its tensor,
or one wrong score would excuse the choice that it causes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from precflow.dumps.dtypes import Array, float_facts
from precflow.judgement import lines

_SELECTIONS: Mapping[str, tuple[str, int | None]] = {  # operator -> position of its argument `dim`, and its default
    "argmax": ("1", None),
    "argmin": ("1", None),
    "max": ("1", None),
    "min": ("1", None),
    "argsort": ("1", -1),
    "sort": ("1", -1),
    "msort": ("", 0),
    "median": ("1", None),
    "nanmedian": ("1", None),
    "mode": ("1", -1),
    "cummax": ("1", None),
    "cummin": ("1", None),
    "topk": ("2", -1),
    "kthvalue": ("2", -1),
}
_COMPARISONS = frozenset(
    "gt lt ge le eq ne greater less greater_equal less_equal not_equal signbit isclose logical_not bool".split()
)
_ROUNDING: Mapping[str, Callable[[Array], Array]] = {
    "round": np.round,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "fix": np.trunc,
    "sign": np.sign,
    "long": np.trunc,
    "int": np.trunc,
    "short": np.trunc,
}
_DRAWS = frozenset("multinomial bernoulli gumbel_softmax categorical".split())


@dataclass(frozen=True)
class ChoiceInput:
    """An input of an operator that chooses, on both sides.

    Attributes:
        reference: Its values on the reference.
        target: Its values on the target.
        dtype: The coarser of their floating point types, ``""`` for integers.
        floor: Its noise floor: the largest difference that noise makes, over the root mean square; 0 if it was not measured.
    """

    reference: Array
    target: Array
    dtype: str
    floor: float = 0.0


@dataclass(frozen=True)
class Flips:
    """Elements of a choice that differ between the sides.

    Attributes:
        differing: How many.
        total: Of how many.
        margin: Largest distance between the values chosen, over the root mean square of all values.
        noise: Noise of the values at the element whose margin is largest, in the same unit.
        near: Each margin is within the noise.
    """

    differing: int
    total: int
    margin: float
    noise: float
    near: bool

    @property
    def text(self) -> str:
        """In words."""
        what = f"{self.differing} of {self.total} choices {'differ' if self.differing > 1 else 'differs'}"
        if not math.isfinite(self.margin):
            return f"{what}, and the values chosen between do not explain it"
        apart = f"the values chosen are {self.margin:.2g} of their scale apart"
        if self.near:
            return f"{what}: {apart}, within their noise of {self.noise:.2g}"
        return f"{what}: {apart}, beyond their noise of {self.noise:.2g}"


def base_name(operator: str) -> str:
    """Return the name of an operator without its level and without the mark of an in-place call.

    >>> base_name("aten.topk"), base_name("round_")
    ('topk', 'round')
    """
    return operator.removeprefix("aten.").rstrip("_")


def is_rounding(operator: str) -> bool:
    """Tell whether an operator chooses between neighbouring whole numbers and may return them as floating point numbers."""
    return base_name(operator) in _ROUNDING


def is_draw(operator: str) -> bool:
    """Tell whether an operator draws: how near a draw was to its edge does not follow from its inputs."""
    return base_name(operator) in _DRAWS


def is_selection(operator: str) -> bool:
    """Tell whether an operator chooses elements of its input and returns their indices."""
    return base_name(operator) in _SELECTIONS


def is_known(operator: str) -> bool:
    """Tell whether :func:`examine` knows how an operator chooses."""
    return base_name(operator) in {*_SELECTIONS, *_COMPARISONS, *_ROUNDING}


def examine(
    operator: str, arguments: Mapping[str, str], inputs: Mapping[str, ChoiceInput], reference: Array, target: Array
) -> Flips | None:
    """Say by how much the sides chose differently.

    Args:
        operator: Its name as recorded.
        arguments: Its other arguments as text.
        inputs: Its inputs by index.
        reference: The output on the reference.
        target: The output on the target.

    Returns:
        The flips, or ``None`` if the operator is not known to choose or the output is none that it could return.
    """
    name = base_name(operator)
    first = next(iter(inputs.values()), None)
    if first is None or first.reference.shape != first.target.shape or reference.shape != target.shape:
        return None
    if name in _SELECTIONS:
        return _examine_selection(first, find_dimension(name, arguments), reference, target)
    if name in _COMPARISONS:
        other = list(inputs.values())[1] if len(inputs) > 1 else _read_number(arguments, first)
        return None if other is None else _examine_comparison(first, other, reference, target)
    if name in _ROUNDING:
        whole = arguments.get("decimals", "0") == "0"
        return _examine_rounding(_ROUNDING[name], first, reference, target) if whole else None
    return None


def find_dimension(operator: str, arguments: Mapping[str, str]) -> int | None:
    """Return the dimension along which a selection's indices count; ``None`` if they count all elements as one row.

    >>> find_dimension("topk", {"1": "2"}), find_dimension("argmax", {}), find_dimension("median", {"1": "0"})
    (-1, None, 0)
    """
    position, default = _SELECTIONS[base_name(operator)]
    text = arguments.get("dim", arguments.get("axis", arguments.get(position, "")))
    try:
        return int(text)
    except ValueError:
        return default


def _read_number(arguments: Mapping[str, str], like: ChoiceInput) -> ChoiceInput | None:
    try:
        value = np.asarray(float(arguments.get("other", arguments.get("1", "0"))))
    except ValueError:
        return None
    return ChoiceInput(value, value, like.dtype)


def _examine_selection(given: ChoiceInput, dimension: int | None, reference: Array, target: Array) -> Flips | None:
    """Compare what ``topk`` and its like chose along one dimension; ``None`` stands for all elements as one row."""
    if not given.reference.size or not _is_index(reference) or not _is_index(target):
        return None
    values = [_to_rows(array.astype(np.float64), dimension, given.reference.ndim) for array in (given.reference, given.target)]
    chosen = [_to_rows(array, dimension, given.reference.ndim) for array in (reference, target)]
    rows, length = values[0].shape
    if any(one.shape[0] != rows or (one.size and not (one.min() >= 0 and one.max() < length)) for one in chosen):
        return None  # an index that does not exist is no choice
    flipped = chosen[0] != chosen[1]
    which = np.flatnonzero(flipped.any(axis=1))
    y, x, mine, theirs = values[0][which], values[1][which], chosen[0][which], chosen[1][which]
    if _counts_twice(theirs) and not _counts_twice(mine):
        return None
    taken, instead = np.take_along_axis(y, mine, axis=1), np.take_along_axis(y, theirs, axis=1)
    margins = _distance(taken, instead).max(axis=1, initial=0.0)
    noise = 2 * bound_noise(given, _distance(y, x).max(axis=1, initial=0.0), np.abs(y).max(axis=1, initial=0.0))
    return _summarize(margins, noise, find_scale(given.reference), int(flipped.sum()), flipped.size)


def _examine_comparison(one: ChoiceInput, other: ChoiceInput, reference: Array, target: Array) -> Flips | None:
    """Compare the outcomes of ``one > other`` and its like."""
    try:
        pairs = ((one.reference, other.reference), (one.target, other.target))
        sides = [np.broadcast_arrays(*pair) for pair in pairs]
    except ValueError:
        return None
    (y, b), (x, a) = ([array.astype(np.float64) for array in pair] for pair in sides)
    if y.shape != reference.shape or x.shape != y.shape:
        return None
    flipped = reference != target
    y, b, x, a = y[flipped], b[flipped], x[flipped], a[flipped]
    noise = bound_noise(one, _distance(y, x), np.abs(y)) + bound_noise(other, _distance(b, a), np.abs(b))
    # Where all inputs have the same bits a comparison has one right outcome, even of two equal numbers.
    margins = np.where(noise > 0, _distance(y, b), np.inf)
    return _summarize(margins, noise, find_scale(one.reference), int(flipped.sum()), flipped.size)


def _examine_rounding(rounding: Callable[[Array], Array], given: ChoiceInput, reference: Array, target: Array) -> Flips | None:
    """Compare numbers that were rounded to whole ones; both sides have to have rounded their own input rightly."""
    y, x = given.reference.astype(np.float64), given.target.astype(np.float64)
    if y.shape != reference.shape:
        return None
    flipped = reference != target
    # What a cast makes of infinity is up to the device: no choice where both sides made the same of it.
    wrong = ((rounding(y) != reference) | (rounding(x) != target)) & ((y != x) | flipped)
    # Both sides are right, so the edge between the two whole numbers lies between the two inputs.
    margins = np.where(wrong, np.inf, _distance(y, x))[flipped]
    noise = bound_noise(given, _distance(y, x)[flipped], np.abs(y)[flipped])
    if (wrong & ~flipped).any():
        return None
    return _summarize(margins, noise, find_scale(given.reference), int(flipped.sum()), flipped.size)


def bound_noise(given: ChoiceInput, difference: Array, size: Array) -> Array:
    """Return how much of a difference counts as noise, element by element.

    Args:
        given: The whole input, to know what is usual in it.
        difference: Differences between the sides at the elements in question.
        size: Magnitudes of the reference there, or the largest of the row.
    """
    every = _distance(given.reference.astype(np.float64), given.target.astype(np.float64))
    usual = lines.OUTSTANDING * find_scale(every)
    unit = 2.0 ** (1 - float_facts(given.dtype).digits) if given.dtype else 0.0
    rounding = lines.TIED_ROUNDINGS * unit * np.where(np.isfinite(size), size, 0.0)
    measured = np.minimum(difference, np.maximum(usual, rounding))
    return np.maximum(measured, given.floor * find_scale(given.reference))


def _summarize(margins: Array, noise: Array, scale: float, differing: int, total: int) -> Flips:
    if not margins.size:
        return Flips(differing, total, 0.0, 0.0, near=not differing)
    # The margin of two sums of rounded numbers may exceed its bound by rounding of its own, in float64.
    near = bool((margins <= noise * (1 + 1e-9)).all())
    worst = int(np.argmax(margins - noise))
    unit = scale or 1.0
    return Flips(differing, total, float(margins[worst]) / unit, float(noise[worst]) / unit, near=near)


def _to_rows(array: Array, dimension: int | None, dimensions: int) -> Array:
    """Return an array as rows along a dimension; an output that has lost the dimension gets it back."""
    if dimension is None or dimensions == 0:
        return array.reshape(1, -1)
    if array.ndim < dimensions:
        array = np.expand_dims(array, dimension)
    moved = np.moveaxis(array, dimension, -1)
    return moved.reshape(-1, moved.shape[-1])


def _is_index(array: Array) -> bool:
    return np.issubdtype(array.dtype, np.integer)


def _counts_twice(chosen: Array) -> bool:
    """Tell whether a row names an element twice."""
    ordered = np.sort(chosen, axis=1)
    return bool((ordered[:, 1:] == ordered[:, :-1]).any())


def _distance(one: Array, other: Array) -> Array:
    """Return the absolute difference; 0 between equal infinities, infinite where one side is NaN."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    both_nan = np.isnan(one) & np.isnan(other)
    return np.where((one == other) | both_nan, 0.0, np.where(np.isnan(apart), np.inf, apart))


def find_scale(array: Array) -> float:
    """Return the root mean square of the finite elements, 0 if there are none."""
    finite = array.astype(np.float64)[np.isfinite(array)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0

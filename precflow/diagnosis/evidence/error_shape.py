"""What an operator's error looks like: a constant factor, a curve over its input, or the trace of a narrower type.

The shape tells the cause. A scale that is applied twice makes an error that is the value times a constant. An approximate
activation makes one that depends on the input alone. Rounding makes neither: it has a size (10 bits for TF32) and no direction.

Functions of two sides take float64 arrays of one shape, without mask fill values, NaN or infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from precflow.comparison.fused.value_classes import Floats

_BINS = 128
_IN_A_BIN = 16  # values, at least: with fewer, a line explains too much of pure noise
_ENOUGH = 64  # different values; fewer may fit into a narrow type by chance
_SMALL_MULTIPLES = 8  # different values of less than 16 steps, at least: in a floating point type they would have finer steps
_SUBNORMAL_STEP = 2.0**-24  # of float16, whose smallest values have a fixed step too
_OF_SLICES = 0.3  # share of what one factor leaves that factors of slices explain, and the most that they may by chance
_FEWEST_SLICES = 4
_DOUBLE = 53  # bits of the significand of float64
_NARROW = (("bfloat16", np.dtype(ml_dtypes.bfloat16)), ("float16", np.dtype(np.float16)))


@dataclass(frozen=True)
class Scale:
    """A least squares fit of ``target = slope * reference``.

    Attributes:
        slope: The factor, 1 for no scaling.
        share: Share of the error's energy that the factor explains, 0 to 1: ``1 - |t - s r|^2 / |t - r|^2``. It is at most the
            share of the target's own energy: next to a large reference, nearly any small target is 0.001 times it.
    """

    slope: float
    share: float


def fit_scale(reference: Floats, target: Floats) -> Scale | None:
    """Fit one factor to all elements by least squares; ``None`` if nothing differs or the reference is zero.

    >>> fit_scale(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
    Scale(slope=1.5, share=1.0)
    """
    energy, error = _energy(reference), _energy(target - reference)
    if energy == 0.0 or error == 0.0:
        return None
    slope = float(np.vdot(reference, target)) / energy
    rest, own = _energy(target - slope * reference), _energy(target)
    return Scale(slope=slope, share=max(0.0, 1.0 - rest / (min(error, own) if own else error)))


def measure_amount_share(reference: Floats, target: Floats) -> float | None:
    """Return the share of the error's energy that one amount explains, added to all elements; ``None`` if nothing differs.

    >>> measure_amount_share(np.array([1.0, 2.0]), np.array([1.5, 2.5])), measure_amount_share(np.array([1.0]), np.array([1.0]))
    (1.0, None)
    """
    error = target - reference
    energy = _energy(error)
    return float(np.sum(error)) ** 2 / (error.size * energy) if energy else None


def find_uneven_factor(reference: Floats, target: Floats) -> str:
    """Name the slices that are scaled by different factors, ``""`` where one factor for all leaves no more than chance.

    The norm of each row enters as a factor of this row. If it is wrong by 2 % on average, one factor explains most of the
    error; what that leaves is the same for a whole row, and that of rounding is not. Rounding has errors that are proportional
    to the values ``x``; of it factors of rows explain by chance the share ``sum over rows of (sum x^4 / sum x^2) / sum x^2``.

    >>> draw = np.random.default_rng(0)
    >>> rows, factors = draw.normal(size=(32, 64)), 1.02 + 0.002 * draw.normal(size=(32, 1))
    >>> find_uneven_factor(rows, rows * factors), find_uneven_factor(rows, rows * 1.02 * (1 + 0.002 * rows[::-1]))
    ('rows', '')
    """
    fitted = fit_scale(reference, target)
    if fitted is None or reference.ndim == 0:
        return ""
    rest = target - fitted.slope * reference
    total, size = _energy(rest), _energy(reference)
    last = reference.ndim - 1
    kinds: list[tuple[str, int | None]] = [("rows", None)] if last else []
    kinds += [("columns" if axis == last else f"slices along axis {axis}", axis) for axis in range(reference.ndim) if last]
    best, most = "", _OF_SLICES
    for name, axis in kinds if total > 0.0 else ():
        here, left = (_as_slices(values, axis) for values in (reference, rest))
        count = len(here)
        squares = np.sum(here**2, axis=1)
        known = squares > 0.0
        chance = float(np.sum(np.sum(here[known] ** 4, axis=1) / squares[known])) / size
        explained = float(np.sum(np.sum(here[known] * left[known], axis=1) ** 2 / squares[known])) / total
        if count < _FEWEST_SLICES or chance > _OF_SLICES or explained < chance * (1.0 + 6.0 * math.sqrt(2.0 / count)):
            continue
        share = (explained - chance) / (1.0 - chance)
        if share > most:
            best, most = name, share
    return best


def _as_slices(values: Floats, axis: int | None) -> Floats:
    """Return rows of the last axis (``None``), or slices along another, each as one row."""
    moved = values.reshape(-1, values.shape[-1]) if axis is None else np.moveaxis(values, axis, 0)
    slices: Floats = moved.reshape(len(moved), -1)
    return slices


def measure_error_cosine(reference: Floats, target: Floats) -> float | None:
    """Return the cosine of error and reference: near 1 or -1 for a scale, near 0 for rounding; ``None`` if there is no error.

    >>> measure_error_cosine(np.array([3.0, 0.0]), np.array([3.0, 1.0]))
    0.0
    """
    error = target - reference
    size = np.sqrt(_energy(error) * _energy(reference))
    return float(np.vdot(error, reference) / size) if size > 0.0 else None


def measure_relative_error(reference: Floats, target: Floats) -> float | None:
    """Return the norm of the error relative to the norm of the reference; ``None`` if the reference is zero.

    >>> measure_relative_error(np.array([4.0, 0.0]), np.array([4.0, 1.0]))
    0.25
    """
    energy = _energy(reference)
    return float(np.sqrt(_energy(target - reference) / energy)) if energy > 0.0 else None


def measure_curve_share(values: Floats, error: Floats) -> float | None:
    """Return the share of the error's energy that a function of the value alone explains, 0 to 1.

    The values are sorted into 128 bins of equal count, and a straight line is fitted in each; what the lines leave is
    unexplained. A line has two parameters, so with n values in a bin it explains 2 / n of pure noise; that is subtracted. Of
    fewer than 2048 values, each is compared with the next larger one: half of the mean square of their differences is what no
    curve explains.

    Args:
        values: Input of the operator, any shape.
        error: Target's output minus the reference's, the same shape.

    Returns:
        ``None`` if there are fewer than 64 finite elements or no error.
    """
    kept = np.isfinite(values) & np.isfinite(error)
    x, y = values[kept], error[kept]
    count = x.size // _BINS  # the few largest values that are left over are ignored
    total = float(y @ y)
    if x.size < _ENOUGH or total == 0.0:
        return None
    order = np.argsort(x, kind="stable")
    if count < _IN_A_BIN:
        steps = np.diff(y[order])
        return float(np.clip(1.0 - 0.5 * float(steps @ steps) / total * x.size / steps.size, 0.0, 1.0))
    order = order[: count * _BINS]
    x, y = x[order].reshape(_BINS, count), y[order].reshape(_BINS, count)
    # What a straight line in each bin explains is no curve.
    inner, outer = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    energy = np.sum(inner * inner, axis=1)
    slope = np.divide(np.sum(inner * outer, axis=1), energy, out=np.zeros_like(energy), where=energy > 0.0)
    rest = outer - slope[:, None] * inner
    share = 1.0 - float(np.sum(rest * rest)) / float(np.sum(y * y) or total)
    chance = 2.0 / count
    return float(np.clip((share - chance) / (1.0 - chance), 0.0, 1.0))


def find_narrow_type(values: Floats) -> str:
    """Return the narrower type that holds every finite value exactly, ``""`` if there is none or too few different values.

    >>> find_narrow_type(np.linspace(0, 1, 100).astype(np.float16).astype(float))
    'float16'
    >>> find_narrow_type(np.linspace(0, 1, 100))
    ''
    """
    finite = np.unique(values[np.isfinite(values)])
    if finite.size < _ENOUGH:
        return ""
    with np.errstate(over="ignore"):  # 1e6 becomes infinite in float16, which is not the same value any more
        exact = (name for name, dtype in _NARROW if np.array_equal(finite.astype(dtype).astype(np.float64), finite))
        return next(exact, "")


def has_fixed_step(target: Floats, reference: Floats) -> bool:
    """Tell whether the target's values, but not the reference's, are multiples of one step, as those of a table are.

    Such values may fit into a narrow type too. But a floating point type has a finer step for small values, down to the
    smallest normal ones.

    >>> wide = np.linspace(-3, 3, 1000) / 7
    >>> has_fixed_step((wide * 64).round() / 64, wide), has_fixed_step(wide.astype(np.float16).astype(float), wide)
    (True, False)
    """
    values = np.unique(np.abs(target[np.isfinite(target) & (target != 0.0)]))
    if values.size < _SMALL_MULTIPLES:
        return False
    fraction, exponent = np.frexp(values)
    whole = np.ldexp(fraction, _DOUBLE).astype(np.int64)
    step = float(np.ldexp((whole & -whole).astype(np.float64), exponent - _DOUBLE).min())  # the lowest bit of any value
    is_table = step > _SUBNORMAL_STEP and np.count_nonzero(values < 2 * _SMALL_MULTIPLES * step) >= _SMALL_MULTIPLES
    return bool(is_table and np.fmod(reference[np.isfinite(reference)], step).any())


def find_narrow_number(reference: float, target: float) -> str:
    """Return the 16-bit type that holds a single number of the target and not that of the reference; ``""`` for none.

    One float32 number in 65536 fits into bfloat16 by chance, so a number that differs by a rounding of it and fits is telling.
    A whole number fits for other reasons.

    >>> find_narrow_number(1.3662458, 1.3671875), find_narrow_number(1.3662458, 1.3668), find_narrow_number(2.01, 2.0)
    ('bfloat16', '', '')
    """
    if target == round(target):
        return ""
    for (name, dtype), unit in zip(_NARROW, (2.0**-7, 2.0**-10), strict=True):
        held = [float(np.float64(value).astype(dtype)) == value for value in (reference, target)]
        if held == [False, True] and abs(target - reference) <= 4.0 * unit * abs(reference):
            return name
    return ""


def count_error_bits(relative: float) -> float:
    """Return how many bits agree on average: ``-log2`` of a relative error; infinite for none.

    >>> count_error_bits(2.0**-12)
    12.0
    """
    return math.inf if relative <= 0.0 else -math.log2(relative)


def _energy(values: Floats) -> float:
    return float(np.vdot(values, values))

"""How the target's input comes from the reference's where only sketches were kept: multiplied, or with an amount added.

Sketches are linear, and the sketch of a constant is known. So their 509 sums prove a factor and an amount, which may be one for
all values or one for each channel::

    sketch(target) = factor * sketch(reference) + amount * sketch(ones)

Where values only moved, or each channel has a factor of its own, sketches say nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from precflow.comparison.estimated.kept_evidence import KeptTensor
from precflow.comparison.estimated.sketch import BLOCK, BUCKETS, sketch_block
from precflow.comparison.fused.value_classes import Floats
from precflow.diagnosis.evidence.input_changes import (
    BEYOND,
    LARGEST,
    SCALE,
    SMALL_AXES,
    Fit,
    InputChange,
    describe_factors,
    list_channel_axes,
    snap_factor,
)
from precflow.dumps.dtypes import FLOATS, float_facts


def find_scaled_sketch(reference: KeptTensor, target: KeptTensor) -> InputChange | None:
    """Find one factor, and one amount or one of each channel, that give all sums of the target's sketch; ``None`` without them.

    Args:
        reference: What was kept of the reference's input.
        target: What was kept of the target's.
    """
    here, there, shape = reference.sketch, target.sketch, reference.shape
    if here is None or there is None or shape != target.shape or not BUCKETS < math.prod(shape) <= LARGEST:
        return None
    if not (_are_ordinary(reference) and _are_ordinary(target)):
        return None
    rounding = 2.0 ** -min(float_facts(each.dtype).digits for each in (reference, target))
    limit = max(rounding, reference.resolution + target.resolution) * float(np.linalg.norm(there))
    if not np.linalg.norm(there - here) > BEYOND * limit:
        return None
    whole = [_sketch_ones(shape, -1, 0)]
    axes = [axis for axis in list_channel_axes(len(shape)) if shape[axis] in SMALL_AXES]
    channels = [(axis, [_sketch_ones(shape, axis, index) for index in range(shape[axis])]) for axis in axes]
    # From few numbers to many.
    solutions = [_solve(here, there, [], -1, rounding)]
    for axis, ones in ((-1, whole), *channels):
        solutions += [_solve(0 * here, there - here, ones, axis), _solve(here, there, ones, axis, rounding)]
    least = min(each.left for each in solutions)
    found = next((each for each in solutions if each.left <= min(limit, 2 * least + limit / 4)), None)
    if found is None:
        return None
    return InputChange((SCALE,), "; ".join(describe_factors(found.fit, len(shape))))


def _are_ordinary(kept: KeptTensor) -> bool:
    """Tell whether a sketch is of all values of a tensor, and these are not all the same."""
    facts = kept.statistics
    if facts is None or kept.dtype not in FLOATS or kept.share != 1 or facts.minimum is None or facts.minimum == facts.maximum:
        return False
    return not (facts.nan or facts.positive_infinity or facts.negative_infinity or facts.sentinel)


class _Solution(NamedTuple):
    """Factors and amounts, and the norm of what they leave."""

    fit: Fit
    left: float


def _solve(here: Floats, there: Floats, ones: list[Floats], axis: int, rounding: float | None = None) -> _Solution:
    """Return factor and amounts of the least squares; the factor stays 1 without a rounding that it may be snapped by."""
    sums = np.stack([*([here] if rounding is not None else []), *ones], axis=1)
    numbers = np.linalg.lstsq(sums, there, rcond=None)[0]
    factor = 1.0
    if rounding is not None:
        factor = float(numbers[0]) if ones else snap_factor(float(numbers[0]), rounding)
        numbers, there = numbers[1:], there - factor * here
    left = there - sum((amount * each for amount, each in zip(numbers, ones, strict=True)), np.zeros_like(there))
    amounts = tuple(map(float, numbers)) or (0.0,)
    return _Solution(Fit((factor,) * len(amounts), amounts, axis), float(np.linalg.norm(left)))


def _sketch_ones(shape: tuple[int, ...], axis: int, index: int) -> Floats:
    """Return the sketch of a tensor that is 1 at one index of an axis, or everywhere for axis -1, and else 0."""
    ones = np.ones(shape) if axis < 0 else np.zeros(shape)
    if axis >= 0:
        np.moveaxis(ones, axis, 0)[index] = 1.0
    flat = ones.reshape(-1)
    sketches = [sketch_block(flat[at : at + BLOCK], at // BLOCK) for at in range(0, flat.size, BLOCK)]
    return np.asarray(np.sum(sketches, axis=0))

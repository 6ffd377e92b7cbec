"""One block of a floating point pair as a :class:`Summary`; pure NumPy, all arithmetic in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.divergence import divergence_sum
from precflow.comparison.ladder import count_close, rungs_from
from precflow.comparison.rows import RowNorms
from precflow.comparison.scaled import Scaled
from precflow.comparison.summary import Summary, merge
from precflow.comparison.ulp import distances
from precflow.comparison.values import FillRange, Floats, PairClasses, classify, fill_range, widen
from precflow.dumps.dtypes import FloatFacts, coarsest, float_facts

_OFFSET = 1e-7  # CANN's operator standard adds it to |y|
_SAFE = 2.0**400  # squares and sums of values between 1/_SAFE and _SAFE stay inside float64
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What the types of a pair imply: facts of both, the coarser one, their fills, and the rungs of the ladder."""

    reference: FloatFacts
    target: FloatFacts
    coarse: str
    fills: tuple[FillRange, FillRange]
    rungs: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Both sides have one type."""
        return self.reference is self.target


def pair_facts(reference: str, target: str) -> PairFacts:
    """Return the facts of a pair of floating point types, by name."""
    left, right, coarse = float_facts(reference), float_facts(target), coarsest([reference, target])
    return PairFacts(left, right, coarse, (fill_range(left), fill_range(right)), rungs_from(coarse))


@dataclass(frozen=True, slots=True)
class _Block:
    """One block, widened; excluded pairs hold 0 on both sides, so that they add nothing.

    Attributes:
        y: Reference, float64.
        x: Target, float64; the very same array where no bit differs.
        raw: Reference and target in their own types.
        excluded: How many pairs are sentinel or nonfinite.
        facts: Of the two types.
        row: Number of the row that the block starts in.
        shape: Rows and their length.
    """

    y: Floats
    x: Floats
    raw: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    excluded: int
    facts: PairFacts
    row: int
    shape: tuple[int, int]


def float_block(reference: npt.NDArray[Any], target: npt.NDArray[Any], facts: PairFacts, *, row: int, length: int) -> Summary:
    """Measure one block.

    Args:
        reference: Flat elements, at least one.
        target: Flat elements, as many.
        facts: Of the two types.
        row: Number of the row that the block starts in.
        length: Elements of a row; the block holds whole rows, or lies within one.
    """
    unequal = not facts.same or _unequal(reference, target)
    y = widen(reference)
    x = widen(target) if unequal else y
    groups = None if _is_plain(y, facts.fills[0]) and (x is y or _is_plain(x, facts.fills[1])) else _classify(y, x, facts)
    if groups is not None:
        y[groups.excluded] = x[groups.excluded] = 0.0
    excluded = groups.sentinel + groups.nonfinite if groups else 0
    shape = (reference.size // length, length) if reference.size % length == 0 else (1, reference.size)
    block = _Block(y, x, (reference, target), excluded, facts, row, shape)
    parts = [_equal_part(block)] if x is y else [_difference_part(block), _relative_part(block), _divergence_part(block)]
    return merge([_counted(reference.size, groups, unequal=unequal), *parts])


def _unequal(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> bool:
    word = _WORDS[reference.itemsize]
    return not np.array_equal(reference.view(word), target.view(word))


def _is_plain(values: Floats, fills: FillRange) -> bool:
    """Say whether every value is ordinary; NaN makes both comparisons false."""
    return bool(values.min() > fills.plain_low and values.max() < fills.high)


def _classify(y: Floats, x: Floats, facts: PairFacts) -> PairClasses:
    with np.errstate(invalid="ignore", over="ignore"):
        return classify(y, x, facts.fills, same_dtype=facts.same)


def _counted(elements: int, groups: PairClasses | None, *, unequal: bool) -> Summary:
    if groups is None:
        return Summary(inexact=True, elements=elements, unequal=unequal)
    return Summary(
        inexact=True,
        elements=elements,
        unequal=unequal,
        sentinel=groups.sentinel,
        nonfinite=groups.nonfinite,
        sentinel_mismatch=groups.sentinel_mismatch,
        nonfinite_mismatch=groups.nonfinite_mismatch,
        infinity_for_sentinel=groups.infinity_for_sentinel,
    )


def _equal_part(block: _Block) -> Summary:
    """Return what a block of equal bits gives: every error is 0, and only the reference's own sums are needed."""
    magnitude = np.abs(block.y)
    largest = float(magnitude.max())
    compared = block.y.size - block.excluded
    norms, square = _squares(block.y, largest, block.shape)
    total = _sum(magnitude, largest)
    return Summary(
        small=int(np.count_nonzero(magnitude < block.facts.reference.smallest_normal)) - block.excluded,
        reference_sum=total,
        reference_square=square,
        target_sum=total,
        target_square=square,
        product=square,
        within_one_thousandth=compared,
        within_five_thousandths=compared,
        close=dict.fromkeys(block.facts.rungs, compared),
        negative=bool(block.y.min() < 0),
        rows=RowNorms(block.row, np.zeros_like(norms), norms),
    )


def _difference_part(block: _Block) -> Summary:
    """Return the sums over differences and values of either side."""
    difference = block.x - block.y
    distance, magnitude, target = np.abs(difference), np.abs(block.y), np.abs(block.x)
    largest, largest_y, largest_x = (float(values.max()) for values in (distance, magnitude, target))
    wrong, difference_square = _squares(difference, largest, block.shape)
    norms, reference_square = _squares(block.y, largest_y, block.shape)
    close = count_close(distance, magnitude, block.facts.rungs)
    return Summary(
        difference_sum=_sum(distance, largest),
        difference_square=difference_square,
        difference_max=largest,
        reference_sum=_sum(magnitude, largest_y),
        reference_square=reference_square,
        target_sum=_sum(target, largest_x),
        target_square=_squares(block.x, largest_x, block.shape)[1],
        product=_product(block.y, block.x, largest_y, largest_x),
        close={name: count - block.excluded for name, count in close.items()},
        rows=RowNorms(block.row, wrong, norms),
    )


def _relative_part(block: _Block) -> Summary:
    """Return what divides by the reference, element by element; small references (and excluded pairs) give 0."""
    normal = block.facts.reference.smallest_normal
    distance, magnitude = np.abs(block.x - block.y), np.abs(block.y)
    small = magnitude < normal
    mismatch = int(np.count_nonzero(np.abs(block.x[small]) >= normal))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = distance / magnitude
        offset = distance / (magnitude + _OFFSET)
        apart = distances(*block.raw, block.facts.coarse)
    relative[small] = 0.0
    apart[small] = 0
    largest, largest_offset = float(relative.max()), float(offset.max())
    outside = block.excluded + mismatch
    return Summary(
        small=int(np.count_nonzero(small)) - block.excluded,
        small_mismatch=mismatch,
        relative_sum=_sum(relative, largest),
        relative_max=largest,
        offset_relative_sum=_sum(offset, largest_offset),
        offset_relative_max=largest_offset,
        within_one_thousandth=int(np.count_nonzero(relative <= 0.001)) - outside,
        within_five_thousandths=int(np.count_nonzero(relative <= 0.005)) - outside,
        ulp_sum=Scaled.of(float(np.add.reduce(apart, dtype=np.float64))),
        ulp_max=int(apart.max()),
    )


def _divergence_part(block: _Block) -> Summary:
    """Return the terms of the divergence, where both sides may be distributions: no value is negative."""
    y, x, smallest = block.y, block.x, block.facts.target.smallest
    if y.min() < 0 or x.min() < 0:
        return Summary(negative=True)
    exponent = _exponent(max(float(y.max()), float(x.max())))
    if exponent:
        x = np.ldexp(np.where((x == 0) & (y > 0), smallest, x), -exponent)
        y = np.ldexp(y, -exponent)
    return Summary(divergence=Scaled.of(divergence_sum(y, x, smallest), exponent))


def _exponent(largest: float) -> int:
    """Return the power of two to divide by before squaring: 0 for all but extreme float64 values."""
    if not largest or not math.isfinite(largest) or 1 / _SAFE < largest < _SAFE:
        return 0
    return math.frexp(largest)[1]


def _sum(values: Floats, largest: float) -> Scaled:
    exponent = _exponent(largest)
    return Scaled.of(float(np.add.reduce(np.ldexp(values, -exponent) if exponent else values)), exponent)


def _squares(values: Floats, largest: float, shape: tuple[int, int]) -> tuple[Floats, Scaled]:
    """Return the Euclidean norm of each row, and the sum of all squares."""
    exponent = _exponent(largest)
    table = (np.ldexp(values, -exponent) if exponent else values).reshape(shape)
    squares: Floats = np.einsum("ij,ij->i", table, table)
    norms = np.ldexp(np.sqrt(squares), exponent) if exponent else np.sqrt(squares)
    return norms, Scaled.of(float(np.add.reduce(squares)), 2 * exponent)


def _product(y: Floats, x: Floats, largest_y: float, largest_x: float) -> Scaled:
    """Return the sum of x y; not by BLAS, whose own threads would fight with ours."""
    left, right = _exponent(largest_y), _exponent(largest_x)
    first = np.ldexp(y, -left) if left else y
    second = np.ldexp(x, -right) if right else x
    return Scaled.of(float(np.einsum("i,i->", first, second)), left + right)

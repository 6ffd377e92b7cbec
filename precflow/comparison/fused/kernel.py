"""Sums up one block of a floating point pair: pure NumPy, all arithmetic in float64.

A tensor is read in blocks so that the dozen temporaries of a block (differences, quotients, classes) stay in the cache, and
memory stays bounded whatever the size of the tensor. This is also the oracle that the compiled pass is tested against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import FILLS
from precflow.comparison.fused.close_tolerances import count_close, rungs_from
from precflow.comparison.fused.kl_divergence import sum_divergence_terms
from precflow.comparison.fused.row_norms import RowNorms
from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.summary import Summary, merge
from precflow.comparison.fused.ulp_distance import has_equal_bits, ulp_distances
from precflow.comparison.fused.value_classes import Fills, FloatPair, Floats, PairClasses, classify_pairs, fills_of, widen
from precflow.dumps.dtypes import FloatFacts, coarsest, float_facts

_OFFSET = 1e-7  # CANN's operator standard adds it to |y|
_SAFE = 2.0**400  # squares and sums of values between 1/_SAFE and _SAFE stay inside float64
_MOST_EXPONENT = 1000  # norms below 2 to this power can be added up
_EXTREME = 2.0**1022  # from here on the difference of two values may overflow


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What the types of a pair imply: facts of both, the coarser one, their fills, and types with tolerances to count for."""

    reference: FloatFacts
    target: FloatFacts
    coarse: str
    fills: tuple[Fills, Fills]
    rungs: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Both sides have one type."""
        return self.reference is self.target


def pair_facts(reference: str, target: str, constants: tuple[float, ...] = FILLS) -> PairFacts:
    """Return the facts of a pair of floating point types, by name.

    Args:
        reference: Type of the reference.
        target: Type of the target.
        constants: Constants that count as mask fills.
    """
    left, right, coarse = float_facts(reference), float_facts(target), coarsest([reference, target])
    return PairFacts(left, right, coarse, (fills_of(left, constants), fills_of(right, constants)), rungs_from(coarse))


@dataclass(frozen=True, slots=True)
class _FloatBlock:
    """Either the ordinary pairs of a block or its fills, widened; all other pairs are 0 on both sides and add nothing.

    Attributes:
        y: Reference, float64.
        x: Target, float64; the very same array if no bit differs.
        raw: Reference and target in their own types.
        excluded: Pairs that do not belong to it.
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

    def parts(self) -> list[Summary]:
        """Return summaries that add up to that of the block."""
        if self.x is self.y:
            return [_sum_equal(self)]
        return [_sum_differences(self), _sum_quotients(self), _sum_divergence(self)]


def summarize_floats(  # noqa: PLR0913  each is needed, and named at the call
    reference: npt.NDArray[Any],
    target: npt.NDArray[Any],
    facts: PairFacts,
    *,
    row: int,
    length: int,
    floors: FloatPair = (0.0, 0.0),
) -> Summary:
    """Measure one block.

    Args:
        reference: Flat elements, at least one.
        target: Flat elements, as many.
        facts: Of the two types.
        row: Number of the row that the block starts in.
        length: Elements of a row; the block holds whole rows, or lies within one.
        floors: Smaller constants are not fills, in the reference and in the target: ``Summary.floors`` of the whole pair.
    """
    unequal = not facts.same or not has_equal_bits(reference, target)
    y = widen(reference)
    x = widen(target) if unequal else y
    shape = (reference.size // length, length) if reference.size % length == 0 else (1, reference.size)
    largest = _find_largest(y), _find_largest(y if x is y else x)
    if largest[0] < facts.fills[0].plain and largest[1] < facts.fills[1].plain:
        counted = Summary(
            inexact=True,
            elements=reference.size,
            unequal=unequal,
            largest_reference=largest[0],
            largest_target=largest[1],
        )
        return merge([counted, *_FloatBlock(y, x, (reference, target), 0, facts, row, shape).parts()])
    groups = classify_pairs(y, x, facts.fills, floors)
    fills = _measure_fills(y, x, (reference, target), groups, facts, row, shape)
    y[groups.excluded] = x[groups.excluded] = 0.0
    excluded = groups.sentinel + groups.nonfinite
    counted = Summary(
        inexact=True,
        elements=reference.size,
        unequal=unequal,
        sentinel=groups.sentinel,
        nonfinite=groups.nonfinite,
        sentinel_mismatch=groups.sentinel_mismatch,
        other_fill=groups.other_fill,
        saturated_mismatch=groups.saturated_mismatch,
        nonfinite_mismatch=groups.nonfinite_mismatch,
        infinity_for_sentinel=groups.infinity_for_sentinel,
        largest_reference=groups.largest[0],
        largest_target=groups.largest[1],
        least_fill_reference=groups.least[0],
        least_fill_target=groups.least[1],
        fills=fills,
    )
    return merge([counted, *_FloatBlock(y, x, (reference, target), excluded, facts, row, shape).parts()])


def _find_largest(values: Floats) -> float:
    """Return the largest magnitude; NaN if there is a NaN."""
    return max(-float(values.min()), float(values.max()))


def _measure_fills(  # noqa: PLR0913, PLR0917  the parts of a block
    y: Floats,
    x: Floats,
    raw: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    groups: PairClasses,
    facts: PairFacts,
    row: int,
    shape: tuple[int, int],
) -> Summary | None:
    """Measure the pairs that are fills of one constant; ``None`` if there are none."""
    number = int(np.count_nonzero(groups.measured))
    if not number:
        return None
    here = np.where(groups.measured, y, 0.0)
    there = here if x is y or np.array_equal(y[groups.measured], x[groups.measured]) else np.where(groups.measured, x, 0.0)
    counted = Summary(inexact=True, elements=number)
    return merge([counted, *_FloatBlock(here, there, raw, y.size - number, facts, row, shape).parts()])


def _sum_equal(block: _FloatBlock) -> Summary:
    """Return the summary of a block of equal bits: every error is 0, and only the reference's own sums are needed."""
    magnitude = np.abs(block.y)
    largest = float(magnitude.max())
    compared = block.y.size - block.excluded
    norms, square = _sum_squares(block.y, largest, block.shape)
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
        rows=_make_rows(block.row, (np.zeros_like(norms[0]), 0), norms),
    )


def _sum_differences(block: _FloatBlock) -> Summary:
    """Return the sums of differences, and of the values of both sides."""
    magnitude, target = np.abs(block.y), np.abs(block.x)
    largest_y, largest_x = float(magnitude.max()), float(target.max())
    halved = int(max(largest_y, largest_x) >= _EXTREME)  # then halves are subtracted, which cannot overflow
    distance = np.abs(_subtract(block, halved))
    halves = float(distance.max())
    wrong, difference_square = _sum_squares(distance, halves, block.shape, halved)
    norms, reference_square = _sum_squares(block.y, largest_y, block.shape)
    with np.errstate(over="ignore"):
        largest = float(np.ldexp(halves, halved))
        close = count_close(np.ldexp(distance, halved) if halved else distance, magnitude, block.facts.rungs)
    return Summary(
        difference_sum=_sum(distance, halves, halved),
        difference_square=difference_square,
        difference_max=largest,
        reference_sum=_sum(magnitude, largest_y),
        reference_square=reference_square,
        target_sum=_sum(target, largest_x),
        target_square=_sum_squares(block.x, largest_x, block.shape)[1],
        product=_sum_products(block.y, block.x, largest_y, largest_x),
        close={name: count - block.excluded for name, count in close.items()},
        rows=_make_rows(block.row, wrong, norms),
    )


def _subtract(block: _FloatBlock, halved: int) -> Floats:
    return block.x / 2 - block.y / 2 if halved else block.x - block.y


def _sum_quotients(block: _FloatBlock) -> Summary:
    """Return the sums and maxima of what is divided by the reference; elements with a small reference give 0."""
    normal = block.facts.reference.smallest_normal
    magnitude = np.abs(block.y)
    halved = int(max(float(magnitude.max()), _find_largest(block.x)) >= _EXTREME)
    distance = np.abs(_subtract(block, halved))
    small = magnitude < normal
    mismatch = int(np.count_nonzero(np.abs(block.x[small]) >= normal))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.ldexp(distance / magnitude, halved) if halved else distance / magnitude
        offset = np.ldexp(distance / (magnitude + _OFFSET), halved) if halved else distance / (magnitude + _OFFSET)
        apart = ulp_distances(*block.raw, block.facts.coarse)
    relative[small] = 0.0
    apart[small] = 0
    largest, largest_offset = float(relative.max()), float(offset.max())
    # What is left out holds 0 by now and would count as within; of small references only those with a small target do.
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
        ulp_sum=ScaledFloat.of(float(np.add.reduce(apart, dtype=np.float64))),
        ulp_max=int(apart.max()),
    )


def _sum_divergence(block: _FloatBlock) -> Summary:
    """Return the terms of the divergence, if no value is negative, so that both sides may be distributions."""
    y, x, smallest = block.y, block.x, block.facts.target.smallest
    if y.min() < 0 or x.min() < 0:
        return Summary(negative=True)
    exponent = _find_exponent(max(float(y.max()), float(x.max())))
    if exponent:
        # The target's smallest number stands for a 0 that the reference gives weight to, and must be scaled like the others.
        x = np.ldexp(np.where((x == 0) & (y > 0), smallest, x), -exponent)
        y = np.ldexp(y, -exponent)
    return Summary(divergence=ScaledFloat.of(sum_divergence_terms(y, x, smallest), exponent))


def _find_exponent(largest: float) -> int:
    """Return the power of two to divide by before squaring: 0 for all but extreme float64 values."""
    if not largest or not math.isfinite(largest) or 1 / _SAFE < largest < _SAFE:
        return 0
    return math.frexp(largest)[1]


def _sum(values: Floats, largest: float, halved: int = 0) -> ScaledFloat:
    exponent = _find_exponent(largest)
    return ScaledFloat.of(float(np.add.reduce(np.ldexp(values, -exponent) if exponent else values)), exponent + halved)


def _sum_squares(
    values: Floats, largest: float, shape: tuple[int, int], halved: int = 0
) -> tuple[tuple[Floats, int], ScaledFloat]:
    """Return the norm of each row, with the power of two to multiply them by, and the sum of all squares."""
    exponent = _find_exponent(largest)
    table = (np.ldexp(values, -exponent) if exponent else values).reshape(shape)
    # einsum makes no array of the squares, and calls no BLAS, whose threads would compete with ours.
    squares: Floats = np.einsum("ij,ij->i", table, table)
    power = exponent + halved
    return (np.sqrt(squares), power), ScaledFloat.of(float(np.add.reduce(squares)), 2 * power)


def _make_rows(first: int, difference: tuple[Floats, int], reference: tuple[Floats, int]) -> RowNorms:
    """Return the norms of rows with one common exponent; 0 if none of them leaves the range of float64."""
    most = max(float(norms.max()) for norms, _ in (difference, reference))
    exponent = max(difference[1], reference[1])
    if exponent + math.frexp(most)[1] <= _MOST_EXPONENT:
        exponent = 0
    wrong, norms = (
        values if power == exponent else np.ldexp(values, power - exponent) for values, power in (difference, reference)
    )
    return RowNorms(first, wrong, norms, exponent)


def _sum_products(y: Floats, x: Floats, largest_y: float, largest_x: float) -> ScaledFloat:
    """Return the sum of x y. Not by BLAS: its threads would compete with ours for the processors."""
    left, right = _find_exponent(largest_y), _find_exponent(largest_x)
    first = np.ldexp(y, -left) if left else y
    second = np.ldexp(x, -right) if right else x
    return ScaledFloat.of(float(np.einsum("i,i->", first, second)), left + right)

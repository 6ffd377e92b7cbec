"""Summarizes the values of one tensor: counts by class, extremes and sums, read in blocks and added up."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.scaled_float import ScaledFloat
from precflow.comparison.fused.value_classes import (
    INFINITY,
    MINUS_INFINITY,
    NOT_A_NUMBER,
    ORDINARY,
    Classes,
    Fills,
    Floats,
    classify_values,
    fills_of,
    widen,
)
from precflow.dumps.dtypes import FLOATS, float_facts

_ADDED = {"merge": operator.add}


@dataclass(frozen=True, slots=True)
class Extent:
    """Counts, extremes and sums of the elements of one tensor; a complex number counts as two elements.

    Extremes and sums are over ordinary elements only: neither NaN, nor infinite, nor a mask's fill value.

    Attributes:
        elements: Number of elements read.
        nan: Number of NaN among them.
        positive_infinity: Number of +Inf.
        negative_infinity: Number of -Inf.
        sentinel: Number of mask fills.
        zero: Number of exact zeros.
        saturated: Number of elements with the largest finite magnitude of their type.
        minimum: Smallest ordinary element; ``inf`` if there is none.
        maximum: Largest ordinary element; ``-inf`` if there is none.
        total: Sum of the ordinary elements.
        square: Sum of their squares.
    """

    elements: int = field(default=0, metadata=_ADDED)
    nan: int = field(default=0, metadata=_ADDED)
    positive_infinity: int = field(default=0, metadata=_ADDED)
    negative_infinity: int = field(default=0, metadata=_ADDED)
    sentinel: int = field(default=0, metadata=_ADDED)
    zero: int = field(default=0, metadata=_ADDED)
    saturated: int = field(default=0, metadata=_ADDED)
    minimum: float = field(default=math.inf, metadata={"merge": min})
    maximum: float = field(default=-math.inf, metadata={"merge": max})
    total: ScaledFloat = field(default_factory=ScaledFloat, metadata=_ADDED)
    square: ScaledFloat = field(default_factory=ScaledFloat, metadata=_ADDED)

    @property
    def ordinary(self) -> int:
        """Number of elements that extremes and sums are made of."""
        return self.elements - self.nan - self.positive_infinity - self.negative_infinity - self.sentinel

    def __add__(self, other: Extent) -> Extent:
        """Merge the extents of two parts of a tensor."""
        return Extent(
            **{sum_.name: sum_.metadata["merge"](getattr(self, sum_.name), getattr(other, sum_.name)) for sum_ in FIELDS}
        )


FIELDS = fields(Extent)


@dataclass(frozen=True, slots=True)
class Kind:
    """What follows from the element type of a tensor: its mask fills (``None`` for integers) and its largest magnitude."""

    fills: Fills | None
    largest: float


@functools.cache
def find_kind(dtype: str) -> Kind:
    """Return mask fills and largest magnitude of an element type; integers and booleans have no fills and never saturate."""
    if dtype not in FLOATS:
        return Kind(None, math.inf)
    facts = float_facts(dtype)
    return Kind(fills_of(facts), facts.largest)


def measure_extent(block: npt.NDArray[Any], floor: float = 0.0) -> Extent:
    """Return counts, extremes and sums of one block of flat reals or integers.

    Args:
        block: Elements of the block.
        floor: Constants below this magnitude are ordinary numbers in the tensor, not mask fills; from
            :func:`kept_evidence.find_fill_floor`.
    """
    if not block.size:
        return Extent()
    kind = find_kind(block.dtype.name)
    values = widen(block)
    wanted, groups = select_ordinary(values, kind.fills, floor)
    counted = Extent(
        elements=block.size,
        nan=_count(groups, NOT_A_NUMBER),
        positive_infinity=_count(groups, INFINITY),
        negative_infinity=_count(groups, MINUS_INFINITY),
        sentinel=0 if groups is None else int(np.count_nonzero(groups > MINUS_INFINITY)),  # the classes after it are fills
        zero=values.size - int(np.count_nonzero(values)),
        saturated=int(np.count_nonzero(np.abs(values) == kind.largest)) if math.isfinite(kind.largest) else 0,
    )
    return counted + _sum_values(wanted) if wanted.size else counted


def select_ordinary(values: Floats, fills: Fills | None, floor: float = 0.0) -> tuple[Floats, Classes | None]:
    """Return the ordinary values of a block, and the class of each value (``None`` if all are ordinary).

    Args:
        values: Elements of the block, float64.
        fills: Mask fills of the tensor's type, ``None`` for integers.
        floor: As for :func:`measure_extent`.
    """
    if fills is None or (values.min() > -fills.plain and values.max() < fills.plain):
        return values, None
    groups = classify_values(values, fills, floor).kinds
    return values[groups == ORDINARY], groups


def merge_extents(parts: Iterable[Extent]) -> Extent:
    """Return the extent of a tensor from those of its parts."""
    return functools.reduce(operator.add, parts, Extent())


def mean(of: Extent) -> float:
    """Return the mean of the ordinary elements; NaN if there are none."""
    return float(of.total) / of.ordinary if of.ordinary else math.nan


def norm(of: Extent) -> float:
    """Return the Euclidean norm of the ordinary elements."""
    # The square may be outside the range of float64, so mantissa and exponent are handled separately. Half of an odd exponent
    # is no integer: one factor of 2 moves into the mantissa then.
    odd = of.square.exponent % 2
    return float(ScaledFloat.of(math.sqrt(math.ldexp(of.square.mantissa, odd)), (of.square.exponent - odd) // 2))


def _sum_values(values: Floats) -> Extent:
    """Return extremes and sums of values; they are scaled below 1 before squaring, so that no square overflows or vanishes."""
    low, high = float(values.min()), float(values.max())
    exponent = math.frexp(max(abs(low), abs(high)))[1]
    scaled = np.ldexp(values, -exponent)
    return Extent(
        minimum=low,
        maximum=high,
        total=ScaledFloat.of(float(np.add.reduce(scaled)), exponent),
        square=ScaledFloat.of(float(np.einsum("i,i->", scaled, scaled)), 2 * exponent),
    )


def _count(groups: npt.NDArray[np.uint8] | None, which: int) -> int:
    return 0 if groups is None else int(np.count_nonzero(groups == which))

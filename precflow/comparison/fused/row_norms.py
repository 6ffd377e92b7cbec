"""Norms of the rows of a tensor, so that one bad row is seen among a million good ones.

A row is the last axis: one token of hidden states, one query of attention scores. One wrong token of a thousand changes
relative L2 of the whole by 3 %, and its own row by 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from precflow.comparison.fused.value_classes import Floats

_FEW = 32  # rows up to which sorting a list is faster than NumPy
MOST_ROWS = 1 << 20  # 16 MB of norms; of longer tensors neighbouring rows count as one


def row_length(shape: tuple[int, ...]) -> int:
    """Return how many elements make a row: the last axis, or the whole tensor if it has one axis or none.

    In tensors of more than ``MOST_ROWS`` rows, neighbouring rows are taken together, so that memory stays bounded.

    >>> row_length((3, 77, 768)), row_length((5,)), row_length(()), row_length((1 << 24, 1))
    (768, 5, 1, 16)
    """
    size = math.prod(shape)
    length = max(shape[-1] if len(shape) > 1 else size, 1)
    return length * max(1, -(-size // (length * MOST_ROWS)))


def split_at_rows(start: int, stop: int, length: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut a range of elements into pieces of at most ``block``, each of whole rows or within one row.

    Args:
        start: First element.
        stop: Element behind the last.
        length: Elements of a row.
        block: Most elements of a piece, at least 1.
    """
    while start < stop:
        inside = start % length
        if inside or length > block or stop - start < length:
            end = min(stop, start - inside + length, start + block)
        else:
            end = start + min(block, stop - start) // length * length
        yield start, end
        start = end


@dataclass(frozen=True, slots=True)
class RowNorms:
    """Euclidean norms of consecutive rows, or of the parts of them that were read so far.

    Attributes:
        first: Number of the first row.
        difference: Norm of target - reference in each row, divided by 2 to the power of ``exponent``.
        reference: Norm of the reference in each row, divided by the same.
        exponent: 0, unless norms would leave the range of float64.
    """

    first: int = 0
    difference: Floats = field(default_factory=lambda: np.zeros(0))
    reference: Floats = field(default_factory=lambda: np.zeros(0))
    exponent: int = 0

    def __add__(self, other: RowNorms) -> RowNorms:
        """Merge two parts; a row that is cut between them gets the norm of both pieces."""
        if not self.difference.size:
            return other
        if not other.difference.size:
            return self
        first = min(self.first, other.first)
        last = max(self.first + self.difference.size, other.first + other.difference.size)
        exponent = max(self.exponent, other.exponent)
        norms = np.zeros((2, last - first))
        for part in (self, other):
            place = slice(part.first - first, part.first - first + part.difference.size)
            mine = np.array((part.difference, part.reference))
            if part.exponent != exponent:  # in the size of the larger ones; none that is not 0 becomes 0
                least = np.where(mine > 0, np.nextafter(0.0, 1.0), 0.0)
                mine = np.maximum(np.ldexp(mine, part.exponent - exponent), least)
            norms[:, place] = np.hypot(norms[:, place], mine)
        return RowNorms(first, norms[0], norms[1], exponent)

    def filled(self) -> RowNorms:
        """Return the rows whose reference is not 0. Where norms are of mask fills alone, these are the rows that have any."""
        there = self.reference > 0
        return RowNorms(0, self.difference[there], self.reference[there], self.exponent)

    def median(self) -> float:
        """Return the median norm of the reference's rows that are not zero, divided as they are; 0 if all rows are.

        Of an embedding's gradient most rows are zero: those of the words that were not read.
        """
        there = self.reference[self.reference > 0]
        if not there.size:
            return 0.0
        # `numpy.median` takes a tenth of a millisecond for any few values, since it also looks for NaN.
        low, high = (there.size - 1) // 2, there.size // 2
        ordered = sorted(there.tolist()) if there.size <= _FEW else np.partition(there, (low, high))
        return float((ordered[low] + ordered[high]) / 2)

    def peak(self) -> float:
        """Return the largest norm of a row of the reference over the median; 0 if all rows are zero."""
        middle = self.median()
        return float(self.reference.max()) / middle if middle else 0.0

    def worst(self) -> float:
        """Return the largest ``|d_row| / max(|reference_row|, median of |reference_row|)``; 0 against 0 is 0."""
        largest = float(self.difference.max()) if self.difference.size else 0.0
        if not largest:
            return 0.0
        middle = self.median()
        scale = np.maximum(self.reference, middle)
        if middle and math.isfinite(largest / middle):  # then no quotient divides by 0 or overflows
            return float((self.difference / scale).max())
        wrong = self.difference > 0
        with np.errstate(divide="ignore", over="ignore"):
            return float(np.max(self.difference[wrong] / scale[wrong], initial=0.0))

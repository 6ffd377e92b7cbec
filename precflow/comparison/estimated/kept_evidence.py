"""Loads what one side kept of a tensor: the tensor itself, its sketch, its statistics, or only its content id.

If a side kept the tensor, its sketch and statistics are computed here in the agent's way, but in float64, so that they can be
compared with a sketch or with statistics of the other side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import FILLS, FILLS_FAR
from precflow.comparison.estimated.sketch import BLOCK, BUCKETS, mix32, sketch_block
from precflow.comparison.fused.row_norms import row_length
from precflow.comparison.fused.value_classes import (
    FIRST_FILL,
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
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES, float_facts, name_of, real_part
from precflow.dumps.mapped_pages import release
from precflow.dumps.records import Record, Statistics

MOST_ROWS = 1024  # norms that an agent keeps of one tensor; with more rows, each norm is that of a group of neighbouring rows
_PLACES = 16384  # elements that share one table of weights
_SEED = 0x243F6A88  # of that table
_HIGH, _LOW = 3, 4  # codes of high and low fills in the checksum of positions; -inf masks as a low fill does and has its code
_SMALLEST_SUM = 2.0**-110  # smaller sums in float32 have lost digits, so that the sketch is less exact than ``resolution`` says
_SINGLE, _SPLIT = 2.0**-22, 2.0**-32  # error of sums in float32, without and with their low part, relative to the norm


class EvidenceSource(Protocol):
    """The part of a dump that is needed here."""

    @property
    def fills(self) -> tuple[float, ...] | None:
        """The constants that its statistics count as mask fills; ``None`` if its agent used an older definition of fills."""

    def tensor(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor; raises DumpError."""

    def sketch(self, record: Record) -> npt.NDArray[Any] | None:
        """Return a record's sketch, ``[parts, BUCKETS]``; raises DumpError."""

    def rows(self, record: Record) -> npt.NDArray[Any] | None:
        """Return the norms of a record's rows; raises DumpError."""


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """What one side kept of a tensor, or what was computed from the kept tensor.

    Attributes:
        dtype: Name of its element type.
        shape: Sizes.
        share: Share of its elements that everything below is about.
        evidence: One of ``contract.DETAILS``: the most that was kept.
        statistics: Counts and sums.
        sketch: float64 ``[BUCKETS]``; ``None`` also if the shape makes sketches unreliable (see ``_is_in_step``).
        resolution: Rounding error of the sketch's sums, relative to the tensor's norm.
        rows: Norms of rows, or of groups of neighbouring rows, float64.
        exact: The numbers were computed in float64 from the tensor itself.
        fills: The constants that were counted as mask fills; ``None`` for an older definition.
    """

    dtype: str
    shape: tuple[int, ...]
    share: float = 1.0
    evidence: str = "digest"
    statistics: Statistics | None = None
    sketch: Floats | None = None
    resolution: float = 0.0
    rows: Floats | None = None
    exact: bool = False
    fills: tuple[float, ...] | None = FILLS


def common_constants(reference: EvidenceSource, target: EvidenceSource) -> tuple[float, ...]:
    """Return the constants that both dumps count as mask fills, or the default ones if the dumps do not agree."""
    return reference.fills if reference.fills and reference.fills == target.fills else FILLS


def load_kept(record: Record, dump: EvidenceSource, constants: tuple[float, ...] = FILLS) -> KeptTensor:
    """Return what a dump kept of a record.

    Args:
        record: The record.
        dump: The dump.
        constants: Constants that count as mask fills if the statistics are computed here, from the tensor.

    Raises:
        DumpError: Something that was kept cannot be read.
    """
    described = functools.partial(KeptTensor, record.dtype, record.shape, record.share, fills=dump.fills)
    if record.stored:
        return sum_tensor(dump.tensor(record), described(), constants)
    if record.statistics is None:
        return described()
    rows = _in_range(dump.rows(record)) if record.share == 1 else None
    sums = None if _is_in_step(record.shape) else _in_range(dump.sketch(record))
    if sums is None:
        return described(evidence="statistics", statistics=record.statistics, rows=rows)
    parts = sums.reshape(-1, BUCKETS)
    return described(
        evidence="sketch",
        statistics=record.statistics,
        sketch=parts.sum(axis=0),
        resolution=_SPLIT if len(parts) > 1 else _SINGLE,
        rows=rows,
    )


def sum_tensor(tensor: npt.NDArray[Any], described: KeptTensor, constants: tuple[float, ...] = FILLS) -> KeptTensor:
    """Return sketch, statistics and row norms of a floating point tensor; for other types only that it was stored.

    Args:
        tensor: The stored tensor, or the stored part of one; complex numbers are read as pairs of reals.
        described: Its type, shape and share.
        constants: Constants that count as mask fills.
    """
    name = real_part(name_of(tensor.dtype))
    if name not in FLOATS:
        return replace(described, evidence="tensors")
    flat = np.ascontiguousarray(tensor).reshape(-1).view(NUMPY_DTYPES[name])
    length, fills = group_length(described.shape, flat.size), fills_of(float_facts(name), constants)
    gathered, floor = _TensorSums(fills, float_facts(name).largest, flat.size, length), find_fill_floor(flat, fills)
    for number, start in enumerate(range(0, flat.size, BLOCK)):
        values = widen(flat[start : start + BLOCK])
        gathered.add(values, classify_values(values, fills, floor).kinds, number)
    return replace(
        described,
        evidence="tensors",
        statistics=gathered.statistics(),
        sketch=None if _is_in_step(described.shape) else gathered.sketch,
        rows=np.sqrt(gathered.rows) if described.share == 1 else None,
        exact=True,
        fills=constants,
    )


def find_fill_floor(flat: npt.NDArray[Any], fills: Fills, block: int = BLOCK) -> float:
    """Return the magnitude below which the constants in a tensor are ordinary numbers, 0 if all of them are mask fills.

    A constant is a fill only if it is ``FILLS_FAR`` times as large as every ordinary number of its tensor: -1e4 is one in a
    mask of zeros, but not among activations of 5e3.

    Args:
        flat: Elements of the tensor, real.
        fills: Mask fills of its element type.
        block: Elements read at a time.
    """
    largest, least = 0.0, np.inf
    for start in range(0, flat.size, block):
        part = flat[start : start + block]
        classified = classify_values(widen(part), fills)
        largest, least = max(largest, classified.largest), min(least, classified.least)
        release(part)
    return FILLS_FAR * largest if least < FILLS_FAR * largest else 0.0


def group_length(shape: tuple[int, ...], size: int) -> int:
    """Return how many elements one kept row norm covers.

    Args:
        shape: Shape of the tensor.
        size: Number of its elements, of a complex tensor twice as many.

    >>> group_length((3, 77, 768), 3 * 77 * 768), group_length((2048, 4), 2048 * 4)
    (768, 8)
    """
    length = row_length(shape) * max(1, size // max(1, int(np.prod(shape, dtype=np.int64))))
    rows = -(-size // length)
    return length * max(1, -(-rows // MOST_ROWS))


def _is_in_step(shape: tuple[int, ...]) -> bool:
    """Tell whether neighbours along an axis are a multiple of ``BUCKETS`` elements apart.

    Element i goes into bucket ``i % BUCKETS``, so a whole column would be in one bucket, where its errors may cancel. A tensor
    of shape 77 x 509 is such a case.
    """
    return any(math.prod(shape[axis + 1 :]) % BUCKETS == 0 for axis in range(len(shape) - 1) if shape[axis] > 1)


def _in_range(numbers: npt.NDArray[Any] | None) -> Floats | None:
    """Return numbers as flat float64, or ``None`` if the agent's float32 sums overflowed or lost digits near 0."""
    if numbers is None:
        return None
    wide = np.asarray(numbers, np.float64).reshape(-1)
    largest = float(np.max(np.abs(wide), initial=0.0))
    return wide if np.isfinite(largest) and (not largest or largest >= _SMALLEST_SUM) else None


class _TensorSums:
    """Adds up sketch, statistics and row norms over the blocks of one tensor.

    Args:
        fills: Mask fills of its element type.
        largest: Largest finite value of its element type.
        size: Number of elements of the tensor.
        length: Number of elements of a row, or of a group of rows.
    """

    def __init__(self, fills: Fills, largest: float, size: int, length: int) -> None:
        self.sketch = np.zeros(BUCKETS)
        self.rows = np.zeros(-(-size // length))
        self._fills = fills
        self._largest = largest
        self._length = length
        self._extremes: list[tuple[float, float]] = []
        self._filled: list[tuple[float, float]] = []  # smallest and largest mask fill of each block
        self._sums = np.zeros(2)
        self._counts = np.zeros(fills.low.size, np.int64)  # by class
        self._zero = self._saturated = self._places = 0

    def add(self, values: Floats, kinds: Classes, number: int) -> None:
        """Add a block of values.

        Args:
            values: Elements of the block, float64.
            kinds: Class of each element.
            number: Number of the block in the tensor, from 0.
        """
        ordinary, filled = kinds == ORDINARY, kinds >= FIRST_FILL
        numbers = np.where(ordinary, values, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            squares = numbers * numbers
        start = number * BLOCK
        self.sketch += sketch_block(numbers, number)
        with np.errstate(over="ignore"):
            self._sums += (numbers.sum(), squares.sum())
            for row, part in self._cut_at_rows(start, values.size):
                self.rows[row] += squares[part].sum()
        self._counts += np.bincount(kinds, minlength=self._counts.size)
        self._zero += int(np.count_nonzero(ordinary & (values == 0)))
        self._saturated += int(np.count_nonzero(np.abs(values) == self._largest))
        if ordinary.any():
            self._extremes.append((float(values[ordinary].min()), float(values[ordinary].max())))
        if filled.any():
            self._filled.append((float(values[filled].min()), float(values[filled].max())))
        if not ordinary.all():
            self._places += checksum_places(kinds, start, self._fills)

    def statistics(self) -> Statistics:
        """Return the statistics of all blocks that were added."""
        known = bool(self._extremes)
        filled = self._counts[FIRST_FILL:]
        fill, spread = self._find_one_fill() if np.count_nonzero(filled) == 1 else (None, None)
        return Statistics(
            minimum=min(low for low, _ in self._extremes) if known else None,
            maximum=max(high for _, high in self._extremes) if known else None,
            sum=float(self._sums[0]) if known else None,
            square=float(self._sums[1]) if known else None,
            nan=int(self._counts[NOT_A_NUMBER]),
            positive_infinity=int(self._counts[INFINITY]),
            negative_infinity=int(self._counts[MINUS_INFINITY]),
            sentinel=int(filled.sum()),
            zero=self._zero,
            saturated=self._saturated,
            high=int(filled[~self._fills.low[FIRST_FILL:]].sum()),
            places=self._places % (1 << 32),
            fill=fill,
            spread=spread,
        )

    def _find_one_fill(self) -> tuple[float, float]:
        """Return the constant of all mask fills, and the largest distance of a fill from it."""
        low, high = min(least for least, _ in self._filled), max(most for _, most in self._filled)
        size = self._fills.sizes[np.searchsorted(self._fills.lows, low, side="right") - 1]
        fill = float(np.copysign(size, low))
        return fill, max(abs(low - fill), abs(high - fill))

    def _cut_at_rows(self, start: int, size: int) -> Iterator[tuple[int, slice]]:
        """Cut a block where rows end; yield the number of each row and its part of the block."""
        position = start
        while position < start + size:
            row = position // self._length
            end = min((row + 1) * self._length, start + size)
            yield row, slice(position - start, end - start)
            position = end


def checksum_places(kinds: Classes, start: int, fills: Fills) -> int:
    """Return the checksum of the positions of elements that are not ordinary, as ``contract.STATISTICS`` defines it.

    It is a sum modulo 2^32, so the checksums of the blocks of a tensor can be added up.

    Args:
        kinds: Class of each element of a block of a tensor.
        start: Flat index of the first of them in the tensor.
        fills: Mask fills of its element type.
    """
    where = np.flatnonzero(kinds != ORDINARY)
    codes = np.where(fills.low, _LOW, _HIGH).astype(np.uint32)
    codes[[NOT_A_NUMBER, INFINITY, MINUS_INFINITY]] = 1, 2, _LOW
    positions = where.astype(np.uint64) + np.uint64(start)
    inside, block = (positions % _PLACES).astype(np.uint32), (positions // _PLACES).astype(np.uint32)
    weights = (mix32(inside + np.uint32(_SEED)) ^ mix32(block)) | np.uint32(1)
    return int(np.add.reduce(codes[kinds[where]] * weights, dtype=np.uint32))

"""Describes one tensor by itself: its counts and extremes, a histogram, and its first and last values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.detail import extent as extents
from precflow.comparison.detail.boxes import BLOCK
from precflow.comparison.detail.extent import Extent, measure_extent
from precflow.comparison.detail.histogram import Histogram, count_bins
from precflow.comparison.estimated.kept_evidence import find_fill_floor
from precflow.comparison.fused.value_classes import widen
from precflow.dumps.dtypes import NUMPY_DTYPES, name_of, real_part
from precflow.dumps.mapped_pages import release

ENDS = 6  # values shown at the beginning and at the end
_ENOUGH_DIGITS = 7  # end of the digits that are tried: six distinguish all values of bfloat16 and float8


@dataclass(frozen=True)
class Description:
    """Description of one tensor.

    Attributes:
        dtype: Element type.
        shape: Sizes.
        extent: Counts, extremes and sums; a complex number counts as two elements.
        values: Histogram of the ordinary elements.
        first: The first values in C order, as :func:`as_scalar` gives them.
        last: The last values; those that ``first`` already has are left out.
    """

    dtype: str
    shape: tuple[int, ...]
    extent: Extent
    values: Histogram
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


def describe(arrays: Sequence[npt.NDArray[Any]], *, block: int = BLOCK) -> list[Description]:
    """Describe tensors, which are read in blocks several times, so that memory is bounded whatever their size.

    Args:
        arrays: Any element types that a dump can hold. Their histograms have the same range, so that they can be overlaid.
        block: Elements read at a time; changes only the last bits of sums.
    """
    flats = [as_reals(array) for array in arrays]
    # The magnitude below which a constant is not a mask fill in a tensor: this reads the whole tensor once.
    fills = [extents.find_kind(flat.dtype.name).fills for flat in flats]
    floors = [0.0 if kinds is None else find_fill_floor(flat, kinds) for flat, kinds in zip(flats, fills, strict=True)]
    measured = [
        extents.merge_extents(measure_extent(part, floor) for part in split_blocks(flat, block))
        for flat, floor in zip(flats, floors, strict=True)
    ]
    low, high = min(extent.minimum for extent in measured), max(extent.maximum for extent in measured)
    return [
        Description(
            dtype=name_of(array.dtype),
            shape=array.shape,
            extent=extent,
            values=make_histogram(flat, low, high, floor, block=block),
            first=tuple(as_scalar(value) for value in array.reshape(-1)[:ENDS]),
            last=tuple(as_scalar(value) for value in array.reshape(-1)[ENDS:][-ENDS:]),
        )
        for array, flat, extent, floor in zip(arrays, flats, measured, floors, strict=True)
    ]


def as_reals(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the elements flat in C order, without a copy if they are contiguous; complex numbers become pairs of reals."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(NUMPY_DTYPES[real_part(name_of(flat.dtype))]) if flat.dtype.kind == "c" else flat


def split_blocks(flat: npt.NDArray[Any], block: int = BLOCK) -> Iterator[npt.NDArray[Any]]:
    """Yield the blocks of a flat array, and release the mapped pages of each before the next one."""
    for start in range(0, flat.size, block):
        part = flat[start : start + block]
        yield part
        release(part)


def make_histogram(flat: npt.NDArray[Any], low: float, high: float, floor: float = 0.0, *, block: int = BLOCK) -> Histogram:
    """Return a histogram of the ordinary elements, all of which lie between ``low`` and ``high``."""
    fills = extents.find_kind(flat.dtype.name).fills
    counted = count_bins(np.zeros(0), low, high)
    for part in split_blocks(flat, block):
        values, _ = extents.select_ordinary(widen(part), fills, floor)
        counted += count_bins(values, low, high)
    return counted


def as_scalar(value: Any) -> str:
    """Return one element as the shortest text that reads back as the same value of its type.

    >>> as_scalar(np.float32(0.1)), as_scalar(np.float64(0.1)), as_scalar(np.int8(-3)), as_scalar(np.bool_(True))
    ('0.1', '0.1', '-3', 'True')
    >>> as_scalar(np.complex64(1 - 0.1j)), as_scalar(np.float32("nan")), as_scalar(NUMPY_DTYPES["bfloat16"].type(0.1))
    ('1-0.1j', 'nan', '0.1')
    """
    if type(value).__module__ != "ml_dtypes":
        return str(value).strip("()")  # complex numbers have parentheses
    # ml_dtypes prints more digits than its types need: 0.100098 for bfloat16's 0.1.
    kind = type(value)
    texts = (f"{float(value):.{digits}g}" for digits in range(1, _ENOUGH_DIGITS))
    return next((text for text in texts if kind(float(text)) == value), str(value))

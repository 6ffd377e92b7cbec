"""The fused pass: reads a pair of tensors once, in blocks, and adds up the summaries of all blocks.

Large comparisons use the compiled pass if there is one for the types; the NumPy pass is always there, and is its oracle.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from precflow.agent.contract import FILLS
from precflow.comparison.compiled.engine import find_compiled_pass
from precflow.comparison.fused.integers import summarize_integers
from precflow.comparison.fused.kernel import pair_facts, summarize_floats
from precflow.comparison.fused.row_norms import row_length, split_at_rows
from precflow.comparison.fused.summary import Summary, merge
from precflow.comparison.fused.value_classes import FloatPair
from precflow.dumps.digest import Words, lanes, no_lanes
from precflow.dumps.dtypes import NUMPY_DTYPES, is_floating, name_of, real_part
from precflow.dumps.mapped_pages import release

Data = npt.NDArray[np.uint8]
Lanes = tuple[Words, Words]

DEFAULT_BLOCK = 1 << 17  # elements: 1 MiB of float64, so that the temporaries of a block stay in the cache
_WORTH_COMPILING = 1 << 27  # elements; of fewer, NumPy is done before numba has compiled (8 s once) or loaded (0.3 s)
_EACH = 1 << 17  # elements that NumPy could read in the time that the smallest pair takes
_LARGEST_KEPT = 31 << 20  # bytes; glibc's own upper bound is 32 MiB


class PairOfTensors:
    """Two tensors of one shape, as flat arrays of reals (a complex number is two) or of integers.

    Args:
        reference: Any element type that a dump can hold.
        target: The same shape, possibly another element type.
        constants: Constants that count as mask fills.

    Raises:
        ValueError: The shapes differ.
    """

    def __init__(self, reference: npt.NDArray[Any], target: npt.NDArray[Any], constants: tuple[float, ...] = FILLS) -> None:
        if reference.shape != target.shape:
            raise ValueError(f"cannot compare shape {list(reference.shape)} with {list(target.shape)}")
        self._mixed = reference.dtype != target.dtype
        self.inexact = is_floating(name_of(reference.dtype)) or is_floating(name_of(target.dtype))
        parts = 2 if "c" in (reference.dtype.kind, target.dtype.kind) else 1
        self.reference, self.target = (self._flatten(array, parts) for array in (reference, target))
        self._names = name_of(self.reference.dtype), name_of(self.target.dtype)
        self._constants = constants
        self.length = row_length((*reference.shape[:-1], reference.shape[-1] * parts) if reference.ndim else (parts,))

    @property
    def size(self) -> int:
        """Number of elements, parts of complex numbers counted singly."""
        return self.reference.size

    def summary(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        block: int = DEFAULT_BLOCK,
        compiled: bool = False,
        floors: FloatPair = (0.0, 0.0),
    ) -> Summary:
        """Read a range of elements and measure it.

        Args:
            start: First element.
            stop: Element behind the last one; all of them by default.
            block: Elements that NumPy widens at a time; the result depends on it by rounding only.
            compiled: Take the compiled pass where there is one. It differs by the rounding of sums only.
            floors: ``Summary.floors`` of the whole pair, where that is not settled: see :meth:`settle`.
        """
        last = self.size if stop is None else stop
        fast = find_compiled_pass(*self._names, self._constants) if compiled else None
        if fast:
            summary = fast(self.reference[start:last], self.target[start:last], start, self.length, floors=floors)
            return self._mark_mixed(summary)
        _keep_freed_memory()
        ranges = split_at_rows(start, last, self.length, block)
        empty = Summary(inexact=self.inexact, unequal=self._mixed)
        return merge([empty, *(self._summarize_block(first, last, floors) for first, last in ranges)])

    def summary_and_lanes(
        self, start: int, stop: int, data: tuple[Data, ...] | None, *, block: int = DEFAULT_BLOCK, compiled: bool = False
    ) -> tuple[Summary, Lanes | None]:
        """Measure a range as :meth:`summary` does, and return the checksums of both sides' content ids too.

        The compiled pass computes them from what it has in the cache.

        Args:
            start: First element; on both sides it starts a block of checksums.
            stop: Element behind the last one.
            data: Bytes of the range on both sides; ``None`` if no checksums are needed.
            block: As for :meth:`summary`.
            compiled: The same.
        """
        fast = find_compiled_pass(*self._names, self._constants) if compiled and data else None
        if data is None or fast is None:
            summary = self.summary(start, stop, block=block, compiled=compiled)
            return summary, (lanes(data[0]), lanes(data[1])) if data else None
        found = no_lanes(data[0].size), no_lanes(data[1].size)
        return self._mark_mixed(fast(self.reference[start:stop], self.target[start:stop], start, self.length, found)), found

    def _mark_mixed(self, summary: Summary) -> Summary:
        """Mark tensors of two types as unequal, whatever their bits."""
        return replace(summary, unequal=True) if self._mixed and not summary.unequal else summary

    def settle(self, parts: Sequence[tuple[int, int, Summary]], *, compiled: bool = False) -> Summary:
        """Merge the summaries of all ranges; ranges with fills that turn out near other values are read again.

        Whether a constant is far from everything else in its tensor shows only when all of it has been read.

        Args:
            parts: First element, the one behind the last, and what :meth:`summary` gave of them, in order.
            compiled: As for :meth:`summary`.
        """
        whole = merge([summary for _, _, summary in parts])
        if whole.settled:
            return whole
        again = (
            self.summary(start, stop, compiled=compiled, floors=whole.floors) if summary.has_fills else summary
            for start, stop, summary in parts
        )
        return merge(list(again))

    def _summarize_block(self, first: int, last: int, floors: FloatPair) -> Summary:
        reference, target = self.reference[first:last], self.target[first:last]
        if self.inexact:
            facts = pair_facts(*self._names, self._constants)
            row = first // self.length
            summary = summarize_floats(reference, target, facts, row=row, length=self.length, floors=floors)
        else:
            summary = summarize_integers(reference, target)
        for side in (reference, target):
            release(side)
        return summary

    def _flatten(self, array: npt.NDArray[Any], parts: int) -> npt.NDArray[Any]:
        """Return the elements in C order, without a copy if they already are."""
        if parts == 2 and array.dtype.kind != "c":  # a real tensor against a complex one: its imaginary parts are 0
            array = array.astype(np.complex128)
        flat = np.ascontiguousarray(array).reshape(-1)
        name = name_of(flat.dtype)
        if parts == 2:
            return flat.view(NUMPY_DTYPES[real_part(name)])
        return flat.astype(np.float64) if self.inexact and not is_floating(name) else flat


def worth_compiling(sizes: Iterable[int]) -> bool:
    """Tell whether the compiled pass reads pairs of these sizes sooner, the time to compile it included.

    >>> worth_compiling([1 << 26]), worth_compiling([1 << 26] * 2), worth_compiling([77] * 2000)
    (False, True, True)
    """
    return sum(size + _EACH for size in sizes) >= _WORTH_COMPILING


def summarize(
    reference: npt.NDArray[Any],
    target: npt.NDArray[Any],
    *,
    block: int = DEFAULT_BLOCK,
    constants: tuple[float, ...] = FILLS,
) -> Summary:
    """Read a pair of tensors and return its summary; it is read twice only if constants of masks are among its values.

    Raises:
        ValueError: The shapes differ.
    """
    pair = PairOfTensors(reference, target, constants)
    compiled = worth_compiling([pair.size])
    return pair.settle([(0, pair.size, pair.summary(block=block, compiled=compiled))], compiled=compiled)


@functools.cache
def _keep_freed_memory() -> None:
    """Make the allocator keep freed memory: measured, a pass is four times faster if temporaries need no fresh pages.

    glibc returns freed blocks above a threshold to the kernel, and raises the threshold to the largest block it ever freed.
    Other allocators are not affected.
    """
    np.empty(_LARGEST_KEPT, np.uint8)

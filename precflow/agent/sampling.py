"""Parts of tensors: which elements a slice or a sample keeps.

The part depends only on the tensor's shape and the rule, so both sides keep the same elements.

A sample consists of whole blocks: one from each of equal sections of the tensor, at a place that a hash chooses, and always the
last block. Taking the first elements would miss an error that grows along the tensor; taking every n-th block would miss a
periodic fault that lies between.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

BLOCK = 1024  # elements of one block
FEWEST = 64  # blocks of a sample, at least; a tensor with no more blocks than that is kept whole

_MASK = 0xFFFFFFFF
_AXIS = re.compile(r"(?:(?P<number>-?\d+)|(?P<start>-?\d+)?:(?P<stop>-?\d+)?(?::(?P<step>[1-9]\d*)?)?|(?P<rest>\.\.\.))\Z")

Index = Union[int, slice]


class Part(NamedTuple):
    """What is kept of one tensor.

    Attributes:
        axes: Index for each axis, applied first; ``()`` keeps every axis whole.
        shape: Sizes after the index.
        blocks: Numbers of the full blocks that are kept after the index, ascending; ``None`` keeps everything.
        tail: First element of a last block that is not full; the number of elements if there is none.
        share: Number of elements kept / number of elements of the tensor, above 0 and at most 1.
    """

    axes: Tuple[Index, ...]
    shape: Tuple[int, ...]
    blocks: Optional[Tuple[int, ...]]
    tail: int
    share: float


def part_name(slices: str, sample: float) -> str:
    """Return 16 hex digits that identify a way to take parts; dumps with different ones hold different elements."""
    text = "%s;%r" % (slices.replace(" ", "").strip("[]"), float(sample))
    return hashlib.blake2b(text.encode("ascii", "replace"), digest_size=8).hexdigest()


def part_of(shape: Sequence[int], slices: str = "", sample: float = 1.0) -> Optional[Part]:
    """Return the part of a tensor of this shape that is kept, ``None`` for all of it.

    Args:
        shape: Sizes of the tensor.
        slices: Index such as ``[0, :, -1]``. A tensor that it does not fit (too few axes, or too short ones) is kept whole.
        sample: Share of the elements, above 0. Tensors of at most ``FEWEST * BLOCK`` elements are kept whole.
    """
    return _compute_part(tuple(shape), slices, float(sample))


@lru_cache(maxsize=4096)
def _compute_part(shape: Tuple[int, ...], slices: str, sample: float) -> Optional[Part]:
    index = _fit_index(parse_slices(slices), shape) if slices else ()
    left = shape
    if index:  # a number removes its axis, a range shortens it
        left = tuple(len(range(*axis.indices(size))) for axis, size in zip(index, shape) if isinstance(axis, slice))
    count, whole = math.prod(left), math.prod(shape)
    blocks = _pick_blocks(count, sample, left) if sample < 1.0 else None
    if count == 0 or (count == whole and blocks is None):
        return None
    tail = count if blocks is None or count % BLOCK == 0 else count - count % BLOCK
    kept = count if blocks is None else len(blocks) * BLOCK + count - tail
    return Part(index, left, blocks, tail, kept / whole)


def parse_slices(text: str) -> Tuple[Union[Index, str], ...]:
    """Parse an index, one entry for each axis; ``...`` stands for the axes between.

    >>> parse_slices("[0, :, -1]")
    (0, slice(None, None, None), -1)

    Raises:
        ValueError: It is not an index of whole numbers and ranges with positive steps.
    """
    axes: List[Union[Index, str]] = []
    inner = text.strip()
    inner = inner[1:-1] if inner.startswith("[") and inner.endswith("]") else inner
    for word in inner.split(","):
        match = _AXIS.match(word.replace(" ", ""))
        if match is None:
            raise ValueError("expected an index such as [0, :, -1] or [..., ::4], got %s" % text)
        if match["rest"]:
            axes.append("...")
        elif match["number"] is not None:
            axes.append(int(match["number"]))
        else:
            axes.append(slice(*(int(match[name]) if match[name] else None for name in ("start", "stop", "step"))))
    if axes.count("...") > 1:
        raise ValueError("expected at most one ... in an index, got %s" % text)
    return tuple(axes)


def _fit_index(axes: Sequence[Union[Index, str]], shape: Tuple[int, ...]) -> Tuple[Index, ...]:
    """Return the index with an entry for every axis of a shape; empty if it does not fit."""
    named = [axis for axis in axes if axis != "..."]
    if len(named) > len(shape):
        return ()
    where = axes.index("...") if "..." in axes else len(axes)
    missing: List[Index] = [slice(None)] * (len(shape) - len(named))
    index = [*axes[:where], *missing, *axes[where + 1 :]]
    fits = all(not isinstance(axis, int) or -size <= axis < size for axis, size in zip(index, shape))
    return tuple(axis for axis in index if not isinstance(axis, str)) if fits else ()


def _pick_blocks(count: int, sample: float, shape: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
    """Return the full blocks that a sample keeps: one from each of equal strata, and the last; ``None`` for all.

    The seed depends on the shape, so that tensors of different shapes are not sampled at the same places.
    """
    whole = count // BLOCK
    strata = max(FEWEST, -int(-sample * whole // 1))  # rounded up: never less than the share that was asked for
    if whole <= strata:
        return None
    seed = 0x243F6A88  # hexadecimal digits of pi; any constant would do, but it must never change
    for size in shape:
        seed = _mix((seed ^ size) & _MASK)
    picked = []
    for stratum in range(strata):
        first, behind = stratum * whole // strata, (stratum + 1) * whole // strata
        picked.append(first + _mix((stratum + seed) & _MASK) % (behind - first))
    if count % BLOCK == 0 and picked[-1] != whole - 1:
        picked.append(whole - 1)
    return tuple(picked)


def _mix(value: int) -> int:
    """Hash 32 bits to 32 bits that look random, the same on every machine.

    The constants are those of lowbias32 (https://nullprogram.com/blog/2018/07/31/).
    """
    value ^= value >> 16
    value = value * 0x7FEB352D & _MASK
    value ^= value >> 15
    value = value * 0x846CA68B & _MASK
    return value ^ value >> 16

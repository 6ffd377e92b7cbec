"""The first look at a block, which tells which further loops it needs.

Loops are written so that LLVM turns them into vector code: no branches, integers of 32 bits, maxima of non-negative floats
taken on their bits (a maximum of floats minds NaN, and is not vectorised), no flag that assumes NaN or infinities away.
Integers and floats of 64 bits have loops of their own, because a loop has as many lanes as its widest type.
Places are unsigned: of a signed one numba minds that it may count from the end.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from precflow.comparison.compiled.bits import (
    FAST,
    MAGNITUDE,
    int32,
    uint32,
    uint64,
    unranked,
)


@register_jitable(fastmath=FAST)
def seen_in(y: Any, x: Any, reference: Any, target: Any, start: Any) -> Any:
    """Look over a block: which loops it needs, and its distances in the last place where both sides have one type and sign.

    Args:
        y: Bits of the reference as float32: a block.
        x: The same of the target.
        reference: Bit patterns of their own type, of the tensor.
        target: The same.
        start: First element of the block in these.

    Returns:
        All differing bits of any pair; all bits that are set in any value; the largest magnitude of both sides, and the
        smallest of y, in float32's bits; the largest distance, and the sum of them, modulo 2^32. So the sign bits tell of
        opposite signs, and of negative values.
    """
    units_largest = units_sum = uint32(0)
    differing = present = top = int32(0)
    least = MAGNITUDE
    for i in range(uint64(y.size)):
        y_bits, x_bits = y[i], x[i]
        differing = int32(differing | int32(y_bits ^ x_bits))
        present = int32(present | int32(y_bits | x_bits))
        magnitude = int32(y_bits & MAGNITUDE)
        larger = max(magnitude, int32(x_bits & MAGNITUDE))  # apart: LLVM makes no vectors of a maximum of three
        top, least = max(top, larger), min(least, magnitude)
        units = uint32(abs(int32(unranked(reference[uint64(start) + i]) - unranked(target[uint64(start) + i]))))
        units_largest, units_sum = max(units_largest, units), uint32(units_sum + units)
    return differing, present, top, least, units_largest, units_sum

"""A fast path for masked tensors on the host: all masked elements hold one constant, or an infinity of one sign.

Attention scores behind a causal mask are the most common tensors that are not ordinary: half of their elements are one and the
same number, or that number plus a score. One pass over the memory marks them, one replaces them by 0, and the rest is added up
like an ordinary tensor. Sorting values into all possible kinds takes thirty passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import FILLS_FAR
from precflow.agent.measure.checksums import BLOCK, mix32_of, place_weights, to_int32
from precflow.agent.measure.scratch import host_memory

if TYPE_CHECKING:
    from precflow.agent.measure.value_classes import Fills

MOST = 1 << 20  # larger tensors do not take this path

_INFINITE = float("inf")
_known_weights: List[torch.Tensor] = []  # one tensor at most: the weights for the largest number of blocks so far


class Masked(NamedTuple):
    """A tensor with its fill replaced by 0, and the facts of the fill.

    Attributes:
        values: ``[elements]`` with 0 in place of the fill; the next call overwrites this memory.
        fill: The constant, as rounded to the type of the tensor, or an infinity.
        spread: Largest distance of a fill from the constant: a score may have been added to it.
        number: How many fills there are.
        saturated: How many of them are the largest finite value of the type.
        zero: Ordinary values that are 0.
        least: Smallest ordinary value; 0 where there is none.
        most: Largest ordinary value; 0 where there is none.
        code: Factor of this kind of fill in the checksum ``places``, see ``contract.STATISTICS``.
        places: Sum of the weights of all positions that hold the fill.
    """

    values: torch.Tensor
    fill: float
    spread: float
    number: int
    saturated: int
    zero: int
    least: float
    most: float
    code: int
    places: int


def remove_fill(values: torch.Tensor, fills: Fills) -> Optional[Masked]:
    """Return a tensor without its single fill constant; ``None`` if it has no fill, several different ones, or a NaN.

    Args:
        values: float32 or float64 on the host, ``[elements]``, 1 to ``MOST`` of them.
        fills: The fills of the original element type.
    """
    low, high = _find_ends(values)  # both are NaN if any value is: then no band matches, and None is returned below
    end = low if -low >= high else high
    infinite = abs(end) == _INFINITE
    band = None if infinite else fills.band_of(end)
    if band is None and not infinite:
        return None
    marks, left, other = _memory(values)
    torch.eq(values, end, out=marks)
    if band is None:
        # Subtracting an infinity from itself gives NaN, so nan_to_num replaces it. An infinity of the other sign is kept: it
        # would be a second fill, and the check of `largest` below then returns None.
        kept = {"neginf": -_INFINITE} if end > 0 else {"posinf": _INFINITE}
        torch.nan_to_num(values, **{"posinf": 0.0, "neginf": 0.0, **kept}, out=left)
    else:
        torch.add(values, marks, alpha=-end, out=left)
    least, most = _find_ends(left)
    spread = 0.0 if band is None else abs(end - band.constant)
    if band is not None and band.low <= (least if end < 0 else most) <= band.high:  # scores were added to the constant
        torch.le(values, band.high, out=marks) if end < 0 else torch.ge(values, band.low, out=marks)
        torch.addcmul(values, marks, values, value=-1, out=left)
        least, most = _find_ends(left)
        torch.sub(values, band.constant, out=other).mul_(marks).abs_()
        spread = _find_ends(other)[1]
    largest = max(-least, most)
    # `not <` instead of `>=`: a NaN compares false with everything, and must be rejected too.
    if not largest < fills.plain or (band is not None and abs(band.constant) < FILLS_FAR * largest):
        return None
    number = int(marks.sum())
    saturated = 0
    if abs(end) == fills.largest:
        saturated = int(torch.eq(values, end, out=other).sum()) if spread else number
    zero = int(torch.eq(left, 0, out=other).sum()) - number
    if not zero and number < values.numel():  # the 0 in place of the fill may look like an extreme of the ordinary values
        least, most = _ends_of_others(left, marks, least, most, other)
    fill = end if band is None else band.constant
    code = 4 if end < 0 else 2 if infinite else 3
    return Masked(left, fill, spread, number, saturated, zero, least, most, code, _sum_place_weights(marks))


def _find_ends(values: torch.Tensor) -> Tuple[float, float]:
    ends = torch.aminmax(values)
    return ends[0].item(), ends[1].item()


def _ends_of_others(
    left: torch.Tensor, marks: torch.Tensor, least: float, most: float, memory: torch.Tensor
) -> Tuple[float, float]:
    """Return the extremes of the ordinary values, none of which is 0; marked places hold a 0 that does not count."""
    # An extreme of 0 comes from the marked places: the values all have one sign. Adding the other extreme there hides them.
    if least == 0:
        least = _find_ends(torch.add(left, marks, alpha=most, out=memory))[0]
    if most == 0:
        most = _find_ends(torch.add(left, marks, alpha=least, out=memory))[1]
    return least, most


def _sum_place_weights(marks: torch.Tensor) -> int:
    """Return the sum of the weights of the marked positions, as a signed 32-bit integer that wraps around."""
    count, blocks = marks.numel(), -(-marks.numel() // BLOCK)
    if not _known_weights or _known_weights[0].numel() < count:  # the weights for MOST elements take 4 MB
        with torch.inference_mode(mode=False):  # a tensor made in that mode is restricted outside of it, and this one is cached
            of_block = place_weights(torch.device("cpu"))
            # The weights repeat from block to block unless the number of the block is mixed in. They are odd, so that no
            # weight is 0 and every single position counts.
            weights = torch.cat([(of_block ^ to_int32(mix32_of(number))) | 1 for number in range(blocks)])
        _known_weights[:] = [weights]
    return int(marks.to(torch.int32).mul_(_known_weights[0][:count]).sum(dtype=torch.int32))


def _memory(like: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return three scratch tensors of the same size and dtype; those of float32 are reused by the next call."""
    count = like.numel()
    if like.dtype != torch.float32:
        return like.new_empty(count), like.new_empty(count), like.new_empty(count)
    first, second, third = host_memory("marks and what is left", (3, count), torch.float32)
    return first, second, third

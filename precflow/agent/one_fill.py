"""Tensors on the host in which one value stands for everything that a mask left out.

Attention scores behind a causal mask are the commonest tensors that are not ordinary: half of them are one and the same number.
One pass marks it, one puts 0 in its place, and what is left is added up like any ordinary tensor. Sorting values into all the
kinds that there are takes thirty passes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.lanes import BLOCK, place_weights
from precflow.agent.mixing import mix32_of, signed

if TYPE_CHECKING:
    from precflow.agent.fills import Fills

MOST = 1 << 20  # values of a tensor that is looked at here

_INFINITE = float("inf")
_known_weights: List[torch.Tensor] = []  # of the most blocks that were asked for
_local = threading.local()


class Masked(NamedTuple):
    """A tensor without its fill.

    Attributes:
        values: ``[elements]`` with 0 in place of the fill; the next call uses the memory again.
        fill: The value.
        number: How often it is there.
        zero: Ordinary values that are 0.
        least: Smallest ordinary value; 0 where there is none.
        most: Largest ordinary value; 0 where there is none.
        code: What a fill of this kind adds to the places, see ``contract.STATISTICS``.
        places: The sum of the weights of the places of the fill.
    """

    values: torch.Tensor
    fill: float
    number: int
    zero: int
    least: float
    most: float
    code: int
    places: int


def masked(values: torch.Tensor, fills: Fills) -> Optional[Masked]:
    """Return a tensor without the one value that is not ordinary; ``None`` where there are several, or none, or it is NaN.

    Args:
        values: float32 or float64 on the host, ``[elements]``, 1 to ``MOST`` of them.
        fills: Of the type that they had first.
    """
    fill, code = _fill_of(*_ends(values), fills)
    if not code:
        return None
    marks, left, other = _memory(values)
    torch.eq(values, fill, out=marks)
    if abs(fill) < _INFINITE:
        torch.add(values, marks, alpha=-fill, out=left)
    else:
        kept = {"neginf": -_INFINITE} if fill > 0 else {"posinf": _INFINITE}  # the other infinity would be a second fill
        torch.nan_to_num(values, **{"posinf": 0.0, "neginf": 0.0, **kept}, out=left)
    least, most = _ends(left)
    if not (fills.plain_low < least and most < fills.high):
        return None
    number = int(marks.sum())
    zero = int(torch.eq(left, 0, out=other).sum()) - number
    if not zero and number < values.numel():
        least, most = _ends_of_others(left, marks, least, most, other)
    return Masked(left, fill, number, zero, least, most, code, _places_of(marks))


def _ends(values: torch.Tensor) -> Tuple[float, float]:
    ends = torch.aminmax(values)
    return ends[0].item(), ends[1].item()


def _fill_of(low: float, high: float, fills: Fills) -> Tuple[float, int]:
    """Return the extreme that is not ordinary, and the code of its kind; code 0 where neither is, or it is NaN."""
    in_band = fills.band is not None and fills.band[0] <= low <= fills.band[1]
    if low <= fills.low or in_band:
        return low, 4
    if high >= fills.high:
        return high, 2 if high == _INFINITE else 3
    return low, 0


def _ends_of_others(
    left: torch.Tensor, marks: torch.Tensor, least: float, most: float, memory: torch.Tensor
) -> Tuple[float, float]:
    """Return the extremes of values none of which is 0, where 0 stands for the others."""
    if least == 0:
        least = _ends(torch.add(left, marks, alpha=most, out=memory))[0]
    if most == 0:
        most = _ends(torch.add(left, marks, alpha=least, out=memory))[1]
    return least, most


def _places_of(marks: torch.Tensor) -> int:
    """Return the sum of the weights of the places that are marked."""
    blocks = -(-marks.numel() // BLOCK)
    chosen = marks.to(torch.int32).mul_(_weights_of(blocks)[: marks.numel()])
    return int(chosen.sum(dtype=torch.int32))


def _weights_of(blocks: int) -> torch.Tensor:
    """Return the weights of the places of some blocks, int32; what the most blocks asked for need is kept, 4 MB at most."""
    if not _known_weights or _known_weights[0].numel() < blocks * BLOCK:
        with torch.inference_mode(mode=False):
            first = place_weights(torch.device("cpu"))
            found = torch.cat([(first ^ signed(mix32_of(number))) | 1 for number in range(blocks)])
        _known_weights[:] = [found]
    return _known_weights[0]


def _memory(like: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return memory of a size and type, three times; that of float32 is the same each time, for fresh pages cost more."""
    count = like.numel()
    if like.dtype != torch.float32:
        return like.new_empty(count), like.new_empty(count), like.new_empty(count)
    known: Optional[torch.Tensor] = getattr(_local, "memory", None)
    if known is None or known.shape[1] < count:
        with torch.inference_mode(mode=False):
            known = _local.memory = torch.empty((3, count), dtype=torch.float32)
    return known[0, :count], known[1, :count], known[2, :count]

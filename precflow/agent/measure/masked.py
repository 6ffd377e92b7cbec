"""Tensors on the host in which one constant stands for everything that a mask left out.

Attention scores behind a causal mask are the commonest tensors that are not ordinary: half of them are one and the same number,
or that with a score added. One pass marks it, one puts 0 in its place, and what is left is added up like any ordinary tensor.
Sorting values into all the kinds that there are takes thirty passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import FILLS_FAR
from precflow.agent.measure.checksums import BLOCK, mix32_of, place_weights, to_int32
from precflow.agent.measure.scratch import host_memory

if TYPE_CHECKING:
    from precflow.agent.measure.value_classes import Fills

MOST = 1 << 20  # values of a tensor that is looked at here

_INFINITE = float("inf")
_known_weights: List[torch.Tensor] = []  # of the most blocks that were asked for


class Masked(NamedTuple):
    """A tensor without its fill.

    Attributes:
        values: ``[elements]`` with 0 in place of the fill; the next call uses the memory again.
        fill: The constant, as rounded to the type of the tensor, or an infinity.
        spread: Largest distance of a fill from it.
        number: How many fills there are.
        saturated: How many of them are the largest finite value of the type.
        zero: Ordinary values that are 0.
        least: Smallest ordinary value; 0 where there is none.
        most: Largest ordinary value; 0 where there is none.
        code: What a fill of this kind adds to the places, see ``contract.STATISTICS``.
        places: The sum of the weights of the places of the fill.
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


def masked(values: torch.Tensor, fills: Fills) -> Optional[Masked]:
    """Return a tensor without the one constant that is not ordinary; ``None`` where there are several, or none, or it is NaN.

    Args:
        values: float32 or float64 on the host, ``[elements]``, 1 to ``MOST`` of them.
        fills: Of the type that they had first.
    """
    low, high = _ends(values)
    end = low if -low >= high else high
    infinite = abs(end) == _INFINITE
    band = None if infinite else fills.band_of(end)
    if band is None and not infinite:
        return None
    marks, left, other = _memory(values)
    torch.eq(values, end, out=marks)
    if band is None:
        kept = {"neginf": -_INFINITE} if end > 0 else {"posinf": _INFINITE}  # the other infinity would be a second fill
        torch.nan_to_num(values, **{"posinf": 0.0, "neginf": 0.0, **kept}, out=left)
    else:
        torch.add(values, marks, alpha=-end, out=left)
    least, most = _ends(left)
    spread = 0.0 if band is None else abs(end - band.constant)
    if band is not None and band.low <= (least if end < 0 else most) <= band.high:  # scores were added to the constant
        torch.le(values, band.high, out=marks) if end < 0 else torch.ge(values, band.low, out=marks)
        torch.addcmul(values, marks, values, value=-1, out=left)
        least, most = _ends(left)
        torch.sub(values, band.constant, out=other).mul_(marks).abs_()
        spread = _ends(other)[1]
    largest = max(-least, most)
    if not largest < fills.plain or (band is not None and abs(band.constant) < FILLS_FAR * largest):  # NaN is not less
        return None
    number = int(marks.sum())
    saturated = 0
    if abs(end) == fills.largest:
        saturated = int(torch.eq(values, end, out=other).sum()) if spread else number
    zero = int(torch.eq(left, 0, out=other).sum()) - number
    if not zero and number < values.numel():
        least, most = _ends_of_others(left, marks, least, most, other)
    fill = end if band is None else band.constant
    code = 4 if end < 0 else 2 if infinite else 3
    return Masked(left, fill, spread, number, saturated, zero, least, most, code, _places_of(marks))


def _ends(values: torch.Tensor) -> Tuple[float, float]:
    ends = torch.aminmax(values)
    return ends[0].item(), ends[1].item()


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
            found = torch.cat([(first ^ to_int32(mix32_of(number))) | 1 for number in range(blocks)])
        _known_weights[:] = [found]
    return _known_weights[0]


def _memory(like: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return memory of a size and type, three times."""
    count = like.numel()
    if like.dtype != torch.float32:
        return like.new_empty(count), like.new_empty(count), like.new_empty(count)
    first, second, third = host_memory("marks and what is left", (3, count), torch.float32)
    return first, second, third

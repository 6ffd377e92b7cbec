"""Statistics of tensors: extremes, sums and counts in two levels, rows of 4096 in float32 and their sums in float64.

Ordinary tensors cost five reductions a row and nothing else. What is not ordinary (NaN, infinities, mask fills, squares beyond
the range of float32) shows in the rows, on the host; only then the values are sorted into kinds. The first half waits for
nothing, so that many tensors share one copy to the host.
"""

from __future__ import annotations

import math
import threading
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from precflow.agent.fills import Cleaning, Fills, fills_of, indicator, sort
from precflow.agent.lanes import BLOCK, place_weights
from precflow.agent.mixing import mix32_of, signed

ROW = 4096
PIECE_ROWS = 256  # that are read at once on the CPU: they stay in the cache
_DEVICE_ROWS = 4096

Number = Union[int, float]
Statistics = List[Optional[Number]]  # in the order of contract.STATISTICS

_LARGEST_WHOLE = 1 << 46  # magnitudes of which a block can be added up in 63 bits
_COLUMNS = 5  # minimum, maximum, sum, sum of squares, number of elements that are not 0
_WIDE = (torch.float32, torch.float64)
_local = threading.local()
_SQUARES: Dict[torch.dtype, Tuple[float, float]] = {  # magnitudes whose squares a row can add up
    torch.float32: (2.0**-48, 2.0**50),
    torch.float64: (2.0**-400, 2.0**400),
}


class Rows(NamedTuple):
    """What the rows of some equally long tensors gave.

    Attributes:
        sums: ``[tensors, rows, 5]``: minimum, maximum, sum, sum of squares, number of elements that are not 0.
        dtype: Element type of the tensors.
        size: Elements of each.
    """

    sums: torch.Tensor
    dtype: torch.dtype
    size: int


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which a floating point type is added up."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_rows(values: torch.Tensor) -> Rows:
    """Return the sums of the rows, on the device of the values; waits for nothing.

    Args:
        values: Floating point, ``[tensors, elements]``, at least one element.
    """
    tensors, count = values.shape
    whole = count // ROW * ROW
    parts = []
    if whole:
        parts.append(_row_sums(values[:, :whole].reshape(-1, ROW), alone=tensors == 1).view(tensors, -1, _COLUMNS))
    if whole < count:
        parts.append(_row_sums(values[:, whole:], alone=tensors == 1).view(tensors, 1, _COLUMNS))
    return Rows(parts[0] if len(parts) == 1 else torch.cat(parts, 1), values.dtype, count)


def _row_sums(rows: torch.Tensor, *, alone: bool) -> torch.Tensor:
    """Return the sums of each row; a piece at a time, which stays in the cache and is all that is ever widened."""
    step = max(1, (PIECE_ROWS if rows.device.type == "cpu" else _DEVICE_ROWS) * ROW // rows.shape[1])
    pieces = []
    for start in range(0, rows.shape[0], step):
        some = rows[start : start + step]
        if some.dtype not in _WIDE:
            some = _scratch(some, 0).copy_(some)
        pieces.append(_wide_row_sums(some, _scratch(some, 1), alone=alone))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _wide_row_sums(rows: torch.Tensor, scratch: torch.Tensor, *, alone: bool) -> torch.Tensor:
    square = torch.mul(rows, rows, out=scratch).sum(1)  # torch.norm is off by 1e-6 where values have few bits
    signs = torch.sign(rows, out=scratch)  # comparing with 0 takes four times as long
    if alone and rows.dtype == torch.float32 and rows.device.type == "cpu":
        filled = torch.zeros_like(square)  # of all rows together, in the first: whole numbers, so that it is exact
        filled[0] = torch.dot(signs.view(-1), signs.view(-1))
    else:
        filled = signs.abs_().sum(1)
    return torch.stack([rows.amin(1), rows.amax(1), rows.sum(1), square, filled], 1)


def _scratch(like: torch.Tensor, place: int) -> torch.Tensor:
    """Return memory to work in, of a shape and the wide type; on the CPU the same each time, for fresh pages cost more."""
    dtype = wide(like.dtype)
    if like.device.type != "cpu":
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    kept, name = _local.__dict__, "%s %d" % (dtype, place)
    if name not in kept:
        with torch.inference_mode(mode=False):  # what is made in that mode cannot be used outside of it
            kept[name] = torch.empty(PIECE_ROWS * ROW, dtype=dtype)
    memory: torch.Tensor = kept[name]
    count = like.numel()
    return memory[:count].view(like.shape) if count <= memory.numel() else torch.empty(like.shape, dtype=dtype)


def of_rows(rows: Rows) -> List[Optional[Statistics]]:
    """Return the statistics of each tensor; ``None`` where its values have to be sorted: :func:`of_any`.

    Args:
        rows: With ``sums`` on the host.
    """
    sums = rows.sums
    lows, highs = sums[..., 0].amin(1).tolist(), sums[..., 1].amax(1).tolist()
    totals = sums[..., 2:].sum(1, dtype=torch.float64).tolist()
    fills, squares = fills_of(rows.dtype), _SQUARES[sums.dtype]
    return [_ordinary((low, high), rest, rows.size, fills, squares) for low, high, rest in zip(lows, highs, totals)]


def _ordinary(
    extremes: Tuple[float, float], sums: Sequence[float], size: int, fills: Fills, squares: Tuple[float, float]
) -> Optional[Statistics]:
    """Return the statistics of a tensor that has only ordinary values, ``None`` where that is not so."""
    (low, high), (total, square, filled) = extremes, sums
    if not (fills.plain_low < low and high < fills.high and math.isfinite(total)):  # NaN is no number's neighbour
        return None
    largest = max(-low, high)
    if largest >= fills.largest or (largest and not squares[0] <= largest <= squares[1]):
        return None
    return [low, high, total, square, 0, 0, 0, 0, size - int(filled), 0, 0, 0]


def of_any(values: torch.Tensor) -> Statistics:
    """Return the statistics of any floating point values; waits for the device.

    Args:
        values: ``[elements]``, at least one.
    """
    fills = fills_of(values.dtype)
    counts, places = _counted(values, fills)
    nan, positive, negative, high, low, nothing, saturated, least, most = counts
    other = nan + positive + negative + high + low
    tail: Statistics = [int(each) for each in (nan, positive, negative, high + low)]
    tail += [int(nothing - other), int(saturated), int(high), places]
    if other == values.numel():
        return [None, None, None, None, *tail]
    if other and nothing == other:  # no ordinary 0: the one that stands for the others is no extreme
        least, most = _extremes(values, fills)
    total, square = _summed(values, cleaning(values.dtype, least, most))
    return [least, most, total, square, *tail]


def _counted(values: torch.Tensor, fills: Fills) -> Tuple[List[float], int]:
    """Return how many values are of each kind, how many are 0 or not ordinary, saturated, and the extremes; and the places."""
    found, places = [], []
    for number, start in enumerate(range(0, values.numel(), BLOCK)):
        kinds = sort(_widened(values[start : start + BLOCK]), fills)
        zero = indicator(torch.eq, kinds.ordinary, 0)
        saturated = indicator(torch.eq, kinds.finite.abs(), fills.largest)
        counted = [each.sum() for each in (*kinds[:5], zero, saturated)]
        found.append(torch.stack([*counted, kinds.ordinary.amin(), kinds.ordinary.amax()]))
        codes = kinds.nan + kinds.positive_infinity * 2 + kinds.high * 3 + (kinds.low + kinds.negative_infinity) * 4
        weights = (place_weights(codes.device)[: codes.numel()] ^ signed(mix32_of(number))) | 1
        places.append((codes.to(torch.int32) * weights).sum(dtype=torch.int32))
    table = torch.stack(found).cpu().double()
    extremes = [table[:, 7].min().item(), table[:, 8].max().item()]
    return table[:, :7].sum(0).tolist() + extremes, sum(torch.stack(places).tolist()) & 0xFFFFFFFF


def _extremes(values: torch.Tensor, fills: Fills) -> Tuple[float, float]:
    """Return smallest and largest of values none of which is an ordinary 0."""
    lows, highs = [], []
    for start in range(0, values.numel(), BLOCK):
        kept = Cleaning(fills)(_widened(values[start : start + BLOCK]))
        kept = kept[kept != 0]
        if kept.numel():
            lows.append(kept.amin())
            highs.append(kept.amax())
    return float(torch.stack(lows).amin()), float(torch.stack(highs).amax())


def cleaning(dtype: torch.dtype, least: Optional[float], most: Optional[float]) -> Cleaning:
    """Return what makes values fit to be added up, from their extremes as :func:`of_any` found them."""
    largest = max(-(least or 0.0), most or 0.0)
    squares = _SQUARES[wide(dtype)]
    within = not largest or squares[0] <= largest <= squares[1]
    return Cleaning(fills_of(dtype), 0 if within else math.frexp(largest)[1])


def _summed(values: torch.Tensor, clean: Cleaning) -> Tuple[Optional[float], Optional[float]]:
    """Return sum and sum of squares of the ordinary values."""
    total = square = 0.0
    for start in range(0, values.numel(), BLOCK):
        kept = clean(_widened(values[start : start + BLOCK]))
        sums = in_rows(kept.view(1, -1)).sums.cpu().double()
        total += sums[..., 2].sum().item()
        square += sums[..., 3].sum().item()
    return _scaled(total, clean.exponent), _scaled(square, 2 * clean.exponent)


def _scaled(value: float, exponent: int) -> Optional[float]:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return None


def _widened(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype in _WIDE else values.to(torch.float32)


def of_integers(values: torch.Tensor) -> Statistics:
    """Return the statistics of whole numbers or truth values; waits for the device. No kind but ordinary is known of them.

    Args:
        values: ``[elements]``, at least one.
    """
    least: List[int] = []
    most: List[int] = []
    total = zero = 0
    square = 0.0
    for start in range(0, values.numel(), BLOCK):
        some = values[start : start + BLOCK].cpu()
        some = some.to(torch.int64) if some.dtype != getattr(torch, "uint64", None) else some
        low, high = (int(some.amin()), int(some.amax())) if some.dtype == torch.int64 else (0, _LARGEST_WHOLE + 1)
        if low >= -_LARGEST_WHOLE and high <= _LARGEST_WHOLE:
            total += int(some.sum())
            square += float(some.double().square_().sum())
            zero += int((some == 0).sum())
        else:  # sums would wrap
            numbers = some.tolist()
            low, high = min(numbers), max(numbers)
            total += sum(numbers)
            square += float(sum(number * number for number in numbers))
            zero += numbers.count(0)
        least.append(low)
        most.append(high)
    return [min(least), max(most), total, square, 0, 0, 0, 0, zero, 0, 0, 0]

"""Statistics of tensors: extremes and sums. Short rows are summed in float32, the sums of the rows in float64.

Two levels are needed because a device may have no float64, and in float32 alone a large sum swallows small values: 2^24 + 1 is
2^24. A row of 512 values is short enough for float32; the sums of thousands of rows are added up in float64 on the host.

Ordinary tensors cost four reductions (minimum, maximum, sum, norm) and nothing else. Anything else (NaN, infinities, mask
fills, squares beyond the range of float32) shows in the extremes, and only then are the values sorted into kinds. Functions
wait for the device only where they say so, so that many tensors can share one copy to the host.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from precflow.agent.measure import masked
from precflow.agent.measure.checksums import BLOCK, mix32_of, place_weights, to_int32
from precflow.agent.measure.scratch import host_memory
from precflow.agent.measure.transfer import bytes_of
from precflow.agent.measure.value_classes import Cleaning, Fills, bands_in, fills_of, indicator, sort_into_kinds

if TYPE_CHECKING:
    from precflow.agent.contract import Band
    from precflow.agent.measure.masked import Masked

ROW = 512  # most values that are added up in float32, so that sums are accurate to 1e-6 whatever the values are
PIECE = 1 << 20  # values that are processed at once on the CPU: they stay in the cache

Number = Union[int, float]
Statistics = List[Optional[Number]]  # in the order of contract.STATISTICS

_SORTED = 16 * BLOCK  # values that are sorted into kinds at once
_LEAST_ROW = 32  # rows shorter than this are not worth it: then use 512 and let the last row be shorter
_LARGEST_WHOLE = 1 << 46  # largest integers of which a block of 2^14 can be added up in int64 without overflow
_WIDE = (torch.float32, torch.float64)
_POSITIVE_INFINITY, _HIGH = 2, 3  # codes in the checksum ``places``, see contract.STATISTICS
_SQUARES: Dict[torch.dtype, Tuple[float, float]] = {  # range of magnitudes whose squares neither vanish nor overflow in a row
    torch.float32: (2.0**-48, 2.0**50),
    torch.float64: (2.0**-400, 2.0**400),
}


class BatchSums(NamedTuple):
    """Extremes and sums of rows of several tensors of the same length, still on their device.

    Attributes:
        sums: ``[tensors, 2 + 2 * rows]``: minimum, maximum, the sum of each row, the norm of each row.
        dtype: Element type of the tensors.
        size: Elements of each.
    """

    sums: torch.Tensor
    dtype: torch.dtype
    size: int


class TensorSums(NamedTuple):
    """Extremes and sums of rows of one ordinary tensor, on the host; the rows are still to be added up.

    Attributes:
        low: Minimum.
        high: Maximum.
        totals: ``[rows]``: the sum of each row.
        norms: ``[rows]``: the norm of each row.
        dtype: Element type of the tensor.
        size: Number of its elements.
    """

    low: float
    high: float
    totals: torch.Tensor
    norms: torch.Tensor
    dtype: torch.dtype
    size: int


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of a floating point type are summed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def choose_row(size: int) -> int:
    """Return the row length for a tensor: the largest power of two from 32 to 512 that divides its size, else 512.

    >>> choose_row(4 * 77 * 512), choose_row(3 * 64), choose_row(1000)
    (512, 64, 512)
    """
    length = min(size & -size, ROW)  # `size & -size` is the largest power of two that divides size
    return length if length >= _LEAST_ROW else ROW


def reduce_batch(values: torch.Tensor, row: int = 0) -> BatchSums:
    """Return the extremes and the sums of the rows, on the device of the values; does not wait for the device.

    Args:
        values: Floating point, ``[tensors, elements]``, at least one element.
        row: Length of the rows, at most ``ROW``; 0 chooses one. The last row may be shorter.
    """
    tensors, count = values.shape
    row = row or choose_row(count)
    step = max(row, PIECE // tensors // row * row) if values.device.type == "cpu" else count
    lows, highs, totals, norms = [], [], [], []
    for start in range(0, count, step):
        some = _widen_into_scratch(values[:, start : start + step])
        lows.append(some.amin(1))
        highs.append(some.amax(1))
        for total, norm in _sum_rows(some.reshape(-1), row, tensors):
            totals.append(total)
            norms.append(norm)
    ends = [torch.stack(lows, 1).amin(1).unsqueeze(1), torch.stack(highs, 1).amax(1).unsqueeze(1)]
    return BatchSums(torch.cat([*ends, *totals, *norms], 1), values.dtype, count)


def _sum_rows(flat: torch.Tensor, row: int, tensors: int = 1) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """Return (sums, norms) of the full rows, and if the length is no multiple of ``row``, of the rest; ``[tensors, rows]``."""
    length = flat.numel() // tensors
    whole = length // row * row
    parts = []
    if whole:
        rows = flat.view(tensors, length)[:, :whole].reshape(tensors, -1, row)
        parts.append((rows.sum(2), torch.linalg.vector_norm(rows, dim=2)))
    if whole < length:
        rest = flat.view(tensors, length)[:, whole:]
        parts.append((rest.sum(1, keepdim=True), torch.linalg.vector_norm(rest, dim=1, keepdim=True)))
    return parts


def reduce_on_host(values: torch.Tensor, row: int = 0) -> Optional[TensorSums]:
    """Return extremes and sums of rows of one tensor; ``None`` if it is not ordinary and needs :func:`measure_any`.

    Args:
        values: Floating point, ``[elements]`` on the host, at least one; a contiguous tensor.
        row: Length of the rows, at most ``ROW``; 0 chooses one. The last row may be shorter.
    """
    count, dtype = values.numel(), values.dtype
    row = row or choose_row(count)
    step = max(1, PIECE // row) * row
    if count <= step:
        parts = [_reduce_piece(values, row)]
    else:
        parts = [_reduce_piece(values[start : start + step], row) for start in range(0, count, step)]
    if None in parts:  # one piece that is not ordinary is enough
        return None
    known = [part for part in parts if part is not None]
    if len(known) == 1:
        low, high, totals, norms = known[0]
    else:
        low, high = min(part[0] for part in known), max(part[1] for part in known)
        totals, norms = torch.cat([part[2] for part in known]), torch.cat([part[3] for part in known])
    return TensorSums(low, high, totals, norms, dtype, count) if _is_ordinary(low, high, dtype) else None


_Piece = Tuple[float, float, torch.Tensor, torch.Tensor]


def _reduce_piece(values: torch.Tensor, row: int) -> Optional[_Piece]:
    """Return extremes, sums and norms of the rows of a piece; ``None`` if some value is not ordinary."""
    dtype = values.dtype
    values = _widen_into_scratch(values)
    # One pass for both extremes, and nothing is added up if they show a value that is not ordinary.
    ends = torch.aminmax(values)
    low, high = ends[0].item(), ends[1].item()
    fills = fills_of(dtype)
    if not fills.are_ordinary(low, high):
        return None
    if values.numel() % row:
        sums = _sum_rows(values, row)
        return low, high, torch.cat([part[0][0] for part in sums]), torch.cat([part[1][0] for part in sums])
    rows = values.view(-1, row)
    return low, high, rows.sum(1), torch.linalg.vector_norm(rows, dim=1)


def _widen_into_scratch(values: torch.Tensor) -> torch.Tensor:
    """Return the values in float32 or float64; narrower ones are copied, on the CPU to memory that the next call overwrites."""
    if values.dtype in _WIDE:
        return values
    if values.device.type == "cpu" and values.numel() <= PIECE:
        return host_memory("widened values", tuple(values.shape), torch.float32, PIECE).copy_(values)
    return values.to(torch.float32)


def finish_batch(rows: BatchSums) -> List[Optional[Statistics]]:
    """Return the statistics of each tensor; ``None`` for a tensor that is not ordinary and needs :func:`measure_any`.

    Args:
        rows: From :func:`reduce_batch`, with ``sums`` copied to the host.
    """
    sums = rows.sums
    number = sums.shape[1] // 2 - 1
    totals, squares = _add_rows(sums[:, 2 : 2 + number], sums[:, 2 + number :])
    tensors = zip(sums[:, 0].tolist(), sums[:, 1].tolist(), totals, squares)
    return [
        _statistics_of_ordinary(low, high, total, square, rows.size) if _is_ordinary(low, high, rows.dtype) else None
        for low, high, total, square in tensors
    ]


def finish_tensors(tensors: Sequence[TensorSums]) -> List[Tuple[Statistics, bytes]]:
    """Return for each tensor its statistics, and the bytes of its row sums followed by its row norms.

    Tensors with the same number of rows are stacked and computed together.
    """
    alike: Dict[Tuple[torch.dtype, int], List[int]] = {}
    for place, sums in enumerate(tensors):
        alike.setdefault((sums.totals.dtype, sums.totals.numel()), []).append(place)
    finished: Dict[int, Tuple[Statistics, bytes]] = {}
    for places in alike.values():
        totals = torch.stack([tensors[place].totals for place in places])
        norms = torch.stack([tensors[place].norms for place in places])
        data = bytes_of(torch.cat([totals, norms], 1))
        size = len(data) // len(places)
        for number, (place, total, square) in enumerate(zip(places, *_add_rows(totals, norms))):
            sums = tensors[place]
            result = _statistics_of_ordinary(sums.low, sums.high, total, square, sums.size)
            finished[place] = (result, data[number * size : (number + 1) * size])
    return [finished[place] for place in range(len(tensors))]


def _add_rows(totals: torch.Tensor, norms: torch.Tensor) -> Tuple[List[float], List[float]]:
    """Return the sum and the sum of squares of each tensor from the sums and norms of its rows, ``[tensors, rows]``."""
    wide_norms = norms.double()
    return totals.sum(1, dtype=torch.float64).tolist(), (wide_norms * wide_norms).sum(1).tolist()


def _is_ordinary(low: float, high: float, dtype: torch.dtype) -> bool:
    """Tell from the extremes whether all values of a tensor are ordinary and their squares can be added up."""
    fills, squares = fills_of(dtype), _SQUARES[wide_type(dtype)]
    if not fills.are_ordinary(low, high):
        return False
    largest = max(-low, high)
    # `<` and not `<=`: a tensor that reaches the largest finite value has saturated elements, which are to be counted.
    return largest < fills.largest and (not largest or squares[0] <= largest <= squares[1])


def _statistics_of_ordinary(low: float, high: float, total: float, square: float, size: int) -> Statistics:
    """Return the statistics of a tensor that has only ordinary values, in the order of ``contract.STATISTICS``.

    The number of zeros is known only if the extremes exclude zeros or everything else; otherwise it is ``None``.
    """
    zero = size if low == high == 0 else None if low <= 0 <= high else 0
    return [low, high, total, square, 0, 0, 0, 0, zero, 0, 0, 0]


def measure_any(values: torch.Tensor) -> Statistics:
    """Return the statistics of any floating point values; waits for the device.

    Args:
        values: ``[elements]``, at least one.
    """
    # Masked attention scores are the most common of these, and the fast path reads them in eight passes instead of thirty.
    fills = fills_of(values.dtype)
    if values.device.type == "cpu" and values.numel() <= masked.MOST:
        cleared = masked.remove_fill(_widen_into_scratch(values), fills)
        known = None if cleared is None else _finish_masked(cleared, values.dtype)
        if known is not None:
            return known
    return _measure_by_kind(values, fills)


def _measure_by_kind(values: torch.Tensor, fills: Fills) -> Statistics:
    """Return the statistics of any values by sorting them into kinds: the slow path."""
    bands = bands_in([_widen(values[start : start + _SORTED]) for start in range(0, values.numel(), _SORTED)], fills)
    counts, places = _count_kinds(values, fills, bands)
    nan, positive, negative, high, low, nothing, saturated, spread, least, most = counts
    other = nan + positive + negative + high + low
    tail: Statistics = [int(count) for count in (nan, positive, negative, high + low)]
    tail += [int(nothing - other), int(saturated), int(high), places]
    if high + low:
        tail += [bands[0].constant, spread] if len(bands) == 1 else [None, None]
    if other == values.numel():
        return [None, None, None, None, *tail]
    # `nothing` counts zeros, including those put in place of values that are not ordinary. If all of them are such, a 0 among
    # the extremes would not be a value of the tensor.
    if other and nothing == other:
        least, most = _find_extremes(values, bands)
    total, square = _sum_ordinary(values, choose_cleaning(values.dtype, least, most))
    return [least, most, total, square, *tail]


def _finish_masked(cleared: Masked, dtype: torch.dtype) -> Optional[Statistics]:
    """Return the statistics of a tensor with one fill; ``None`` if the squares of its ordinary values are out of range."""
    if choose_cleaning(dtype, cleared.least, cleared.most).exponent:
        return None
    number, infinite = cleared.number, math.isinf(cleared.fill)
    tail: Statistics = [0, number if cleared.code == _POSITIVE_INFINITY else 0, number if infinite and cleared.fill < 0 else 0]
    tail += [0 if infinite else number, cleared.zero, cleared.saturated]
    tail += [number if cleared.code == _HIGH else 0, cleared.code * cleared.places & 0xFFFFFFFF]
    tail += [] if infinite else [cleared.fill, cleared.spread]
    if number == cleared.values.numel():
        return [None, None, None, None, *tail]
    parts = _sum_rows(cleared.values, choose_row(cleared.values.numel()))
    totals, norms = torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)
    (total,), (square,) = _add_rows(totals, norms)
    return [cleared.least, cleared.most, total, square, *tail]


def _count_kinds(values: torch.Tensor, fills: Fills, bands: Sequence[Band]) -> Tuple[List[float], int]:
    """Return ten counts and extremes of the values, and the checksum ``places``.

    The ten: NaN, +inf, -inf, high fills, low fills, zeros after replacing what is not ordinary, saturated values, the largest
    distance of a fill from the constant, minimum and maximum of the ordinary values (0 included for those replaced).
    """
    facts, places = [], []
    constant = bands[0].constant if len(bands) == 1 else 0.0
    for start in range(0, values.numel(), _SORTED):
        kinds = sort_into_kinds(_widen(values[start : start + _SORTED]), bands)
        zero = indicator(torch.eq, kinds.ordinary, 0)
        saturated = indicator(torch.eq, kinds.finite.abs(), fills.largest)
        counted = [each.sum() for each in (*kinds[:5], zero, saturated)]
        filled = kinds.high + kinds.low
        # Products with 0 and 1 choose values without a bool index, which would wait for the device.
        spread = (kinds.finite * filled - filled * constant).abs().amax()
        facts.append(torch.stack([*counted, spread, kinds.ordinary.amin(), kinds.ordinary.amax()]))
        codes = kinds.nan + kinds.positive_infinity * 2 + kinds.high * 3 + (kinds.low + kinds.negative_infinity) * 4
        places.append((codes.to(torch.int32) * _weigh_places(start, codes)).sum(dtype=torch.int32))
    table = torch.stack(facts).cpu().double()
    extremes = [table[:, 7].max().item(), table[:, 8].min().item(), table[:, 9].max().item()]
    return table[:, :7].sum(0).tolist() + extremes, sum(torch.stack(places).tolist()) & 0xFFFFFFFF


def _weigh_places(start: int, codes: torch.Tensor) -> torch.Tensor:
    """Return the weights of the positions from ``start`` on, a multiple of ``BLOCK``, int32 ``[elements]``."""
    weights = place_weights(codes.device)
    blocks = range(start // BLOCK, -(-(start + codes.numel()) // BLOCK))
    numbers = torch.tensor([to_int32(mix32_of(number)) for number in blocks], dtype=torch.int32).to(codes.device)
    return ((weights ^ numbers.unsqueeze(1)) | 1).view(-1)[: codes.numel()]


def _find_extremes(values: torch.Tensor, bands: Sequence[Band]) -> Tuple[float, float]:
    """Return the smallest and the largest ordinary value of a tensor that has no ordinary 0."""
    lows, highs = [], []
    for start in range(0, values.numel(), _SORTED):
        kept = sort_into_kinds(_widen(values[start : start + _SORTED]), bands).ordinary
        kept = kept[kept != 0]
        if kept.numel():
            lows.append(kept.amin())
            highs.append(kept.amax())
    return float(torch.stack(lows).amin()), float(torch.stack(highs).amax())


def choose_cleaning(dtype: torch.dtype, least: Optional[float], most: Optional[float]) -> Cleaning:
    """Return how to prepare values for summing, from the minimum and maximum that :func:`measure_any` found."""
    largest = max(-(least or 0.0), most or 0.0)
    squares = _SQUARES[wide_type(dtype)]
    within = not largest or squares[0] <= largest <= squares[1]
    # Squares of 1e30 overflow in float32, and those of 1e-30 vanish.
    # A power of two scales without rounding: the sums of the scaled values are the scaled sums.
    exponent = 0 if within else math.frexp(largest)[1]
    return Cleaning(math.inf, -math.inf) if least is None or most is None else Cleaning(least, most, exponent)


def _sum_ordinary(values: torch.Tensor, clean: Cleaning) -> Tuple[Optional[float], Optional[float]]:
    """Return sum and sum of squares of the ordinary values; ``None`` for one that float64 cannot hold."""
    total = square = 0.0
    for start in range(0, values.numel(), _SORTED):
        kept = clean(_widen(values[start : start + _SORTED]))
        sums = reduce_batch(kept.view(1, -1)).sums[0, 2:].cpu().double()
        total += sums[: len(sums) // 2].sum().item()
        square += sums[len(sums) // 2 :].square().sum().item()
    return _scale(total, clean.exponent), _scale(square, 2 * clean.exponent)


def _scale(value: float, exponent: int) -> Optional[float]:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return None


def _widen(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype in _WIDE else values.to(torch.float32)


def measure_integers(values: torch.Tensor) -> Statistics:
    """Return the statistics of integers or booleans; waits for the device. All of their values are ordinary.

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
        else:  # int64 sums could overflow silently; Python's cannot. uint64 always comes here: torch has few operations for it
            numbers = some.tolist()
            low, high = min(numbers), max(numbers)
            total += sum(numbers)
            square += float(sum(number * number for number in numbers))
            zero += numbers.count(0)
        least.append(low)
        most.append(high)
    return [min(least), max(most), total, square, 0, 0, 0, 0, zero, 0, 0, 0]

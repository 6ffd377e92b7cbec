"""Sketches and row norms: small summaries from which the judge estimates the difference of two tensors without having them.

A sketch is 509 sums ("buckets") of signed values, 2 KB whatever the size of the tensor. It is linear:
``sketch(a) - sketch(b) = sketch(a - b)``, and the norm of that estimates the norm of ``a - b`` with a standard error of
``1 / sqrt(2 * 509)``, 3.1 %. Values go round robin into the buckets, each with a sign. The signs of a block are read from one
fixed vector, at an offset hashed from the number of the block. The number of buckets is prime: with 512 buckets and rows of
512 values, each column would fall into a single bucket, and a difference in one column would be estimated from one sum only.
The signs are computed with integers only, so they are the same on every device.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import torch

from precflow.agent.measure.checksums import mix32, mix32_of
from precflow.agent.measure.scratch import host_memory
from precflow.agent.measure.statistics import ROW, wide_type

if TYPE_CHECKING:
    from precflow.agent.measure.value_classes import Cleaning

BUCKETS = 509  # a prime, so that no column of a matrix falls into a single bucket
BLOCK = (65536 // BUCKETS) * BUCKETS  # values that share one offset
BLOCKS_OF_STRETCH = 16
STRETCH = BLOCKS_OF_STRETCH * BLOCK  # values that are summed up at once: 4 MB
MOST_ROWS = 1024  # most row norms that are kept of a tensor
STORED_WHOLE = 1024  # elements: a tensor up to this size is stored itself, because it is about as small as its sketch
FINE_BITS = 12  # bits of the high part, relative to the largest magnitude, when values are split into high and low parts

_OFFSETS = 1 << 20  # places in the vector of signs where those of a block may begin
_ROWS_OF_PIECE = 256  # most rows of 509 values that are added up in float32
_STRETCHES_KEPT = 4  # the signs of so many stretches are cached: 16 MB
_AT_ONCE = 1 << 18  # values that are squared at once: they stay in the cache
_MOST_JUDGED_ROWS = 1 << 20  # of a tensor with more rows the judge joins neighbouring rows
_LEAST_ROW = 64  # shortest part that a row is cut into if it is too long to be added up in float32
_ROOM = STRETCH + 2 * _ROWS_OF_PIECE * BUCKETS  # elements of the longest stretch, with padding

_signs: Dict[torch.device, torch.Tensor] = {}  # the vector that signs are read from, float32, 4 MB
_stretches: Dict[Tuple[int, torch.device], torch.Tensor] = {}  # number of a stretch and device -> its signs


def sketch(values: torch.Tensor, clean: Optional[Cleaning] = None, *, largest: float = 0.0) -> torch.Tensor:
    """Return a sketch in pieces, ``[1 or 2, pieces, BUCKETS]``, to be summed by :func:`add_pieces`.

    Args:
        values: Floating point, ``[elements]``; a contiguous tensor.
        clean: Given if some values are not ordinary, or too large or small to be squared.
        largest: Largest magnitude of the (cleaned) values if high and low parts are to be summed separately, else 0. Two sums
            resolve relative differences of 3e-8 without float64 on the device; a single float32 sum resolves 3e-7.
    """
    pieces = [_sum_stretch(each, number, clean, largest) for number, each in enumerate(values.split(STRETCH))]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


def add_pieces(pieces: torch.Tensor, clean: Optional[Cleaning] = None) -> torch.Tensor:
    """Return a sketch in its stored form, float32 ``[1 or 2, BUCKETS]`` on the host.

    Args:
        pieces: The result of :func:`sketch`, copied to the host.
        clean: The same as for :func:`sketch`.
    """
    return undo_scaling(pieces.sum(1, dtype=torch.float64), clean)


def undo_scaling(numbers: torch.Tensor, clean: Optional[Cleaning]) -> torch.Tensor:
    """Return sums or norms of cleaned values as float32, multiplied by the power of 2 that cleaning divided the values by."""
    if clean is None or not clean.exponent:
        return numbers.to(torch.float32)
    return torch.ldexp(numbers.double(), torch.tensor(clean.exponent)).to(torch.float32)


def _sum_stretch(some: torch.Tensor, number: int, clean: Optional[Cleaning], largest: float) -> torch.Tensor:
    """Return the sums of one stretch, ``[1 or 2, pieces, BUCKETS]``.

    There are enough pieces that float32 adds up at most ``_ROWS_OF_PIECE`` rows in each. Their number is even: when two CPU
    threads share the work, each then sums the half of the memory that it has multiplied before, which is in its own cache.
    """
    count = some.numel()
    pieces = 2 * max(1, -(-count // (2 * BUCKETS * _ROWS_OF_PIECE)))
    dtype, size = wide_type(some.dtype), -(-count // (pieces * BUCKETS)) * pieces * BUCKETS
    if some.device.type == "cpu" and dtype == torch.float32:
        padded = host_memory("signed values", (size,), dtype, _ROOM)
    else:
        padded = torch.empty(size, dtype=dtype, device=some.device)
    padded[count:] = 0
    if clean is not None or some.element_size() == 1:  # torch has no arithmetic for float8
        some = some.to(padded.dtype)
    if clean is not None:
        some = clean(some)
    torch.mul(some, _choose_signs(number, some.device)[:count], out=padded[:count])
    table = padded.view(pieces, -1, BUCKETS)
    if not largest:
        return table.sum(1).unsqueeze(0)
    # High parts are multiples of one step with FINE_BITS bits, so float32 adds 256 of them exactly: 12 + 8 bits fit into 24.
    step = 2.0 ** (math.frexp(largest)[1] - FINE_BITS)
    high = (table / step).round_().mul_(step)
    return torch.stack([high.sum(1), (table - high).sum(1)])


def _choose_signs(number: int, device: torch.device) -> torch.Tensor:
    """Return the signs of the values of a stretch, float32 ``[STRETCH]``; cached for the first few stretches of a tensor."""
    signs = _stretches.get((number, device))
    if signs is None:
        with torch.inference_mode(mode=False):  # what is cached must also be usable outside of that mode
            if device not in _signs:
                bits = mix32(torch.arange(_OFFSETS + BLOCK, dtype=torch.int32)) & 1
                _signs[device] = (1 - 2 * bits).to(torch.float32).to(device)
            offsets = [mix32_of(number * BLOCKS_OF_STRETCH + block) % _OFFSETS for block in range(BLOCKS_OF_STRETCH)]
            signs = torch.cat([_signs[device][offset : offset + BLOCK] for offset in offsets])
        if number < _STRETCHES_KEPT:
            _stretches[number, device] = signs
    return signs


def row_length(shape: Sequence[int], count: int) -> int:
    """Return how many values one row norm covers: the last axis, or several neighbouring rows if there are too many rows.

    Args:
        shape: Shape of the tensor.
        count: Number of its values; a complex element has two.

    >>> row_length([3, 77, 768], 3 * 77 * 768), row_length([2048, 4], 2048 * 4), row_length([5], 5)
    (768, 8, 5)
    """
    size = math.prod(shape)
    length = max(shape[-1] if len(shape) > 1 else size, 1)
    length *= max(1, -(-size // (length * _MOST_JUDGED_ROWS)))
    length *= max(1, count // max(1, size))  # complex: two numbers for each element
    return length * max(1, -(-count // (length * MOST_ROWS)))


@lru_cache(maxsize=4096)
def shared_row_length(shape: Tuple[int, ...], count: int) -> int:
    """Return a row length for statistics from which the norms of the tensor's own rows follow; 0 if there is none.

    Statistics add up short rows anyway, so their norms cost nothing if the tensor's own rows can be put together from them:
    one row of 768 values is two rows of 384. No norms are kept of a tensor of at most ``STORED_WHOLE`` values.

    Args:
        shape: Shape of the tensor.
        count: Number of its values; a complex element has two.
    """
    length = row_length(shape, count)
    if count <= STORED_WHOLE:
        return 0
    if length <= ROW:
        return length
    # Too long for float32: cut into the fewest equal parts that are short enough.
    parts = range(2, length // _LEAST_ROW + 1) if count % length == 0 else ()
    return next((length // number for number in parts if length % number == 0 and length // number <= ROW), 0)


def row_norms(values: torch.Tensor, length: int, clean: Optional[Cleaning] = None) -> torch.Tensor:
    """Return the norm of each row; the last row may be shorter. float64 for float64 values, else float32.

    Args:
        values: Floating point, ``[elements]``; a contiguous tensor.
        length: Values per row.
        clean: Given if some values are not ordinary, or too large or small to be squared.
    """
    whole = values.numel() // length * length
    parts: List[torch.Tensor] = []
    if whole:
        rows = values[:whole].view(-1, length)
        step = max(1, _AT_ONCE // length)
        parts += [_norms(rows[start : start + step], clean) for start in range(0, rows.shape[0], step)]
    if whole < values.numel():
        parts.append(_norms(values[whole:].view(1, -1), clean))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def join_rows(norms: torch.Tensor, number: int) -> torch.Tensor:
    """Return the norms of longer rows, each made of ``number`` neighbouring short rows with the given norms."""
    return norms if number == 1 else (norms.view(-1, number).double() ** 2).sum(1).sqrt()


def _norms(rows: torch.Tensor, clean: Optional[Cleaning]) -> torch.Tensor:
    """Return the norm of each row; long rows are squared in pieces."""
    squares: List[torch.Tensor] = []
    for start in range(0, rows.shape[1], _AT_ONCE):
        piece = rows[:, start : start + _AT_ONCE].to(wide_type(rows.dtype))
        if clean is not None:
            piece = clean(piece)
        squares.append((piece * piece).sum(1))
    return (squares[0] if len(squares) == 1 else torch.stack(squares, 1).sum(1)).sqrt()

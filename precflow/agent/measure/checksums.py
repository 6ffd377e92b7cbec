"""Two checksums of a tensor's bytes, block by block: sums of mixed words that any device makes in any order.

Each word is mixed with a weight of its place *before* the sum, so that the sum is not linear in the bits: a plain weighted sum
is blind to patterns such as +1 -2 +1 ulp, and in 32 bits to any even number of flipped signs. Both sums are over the same mixed
words, with weights that have nothing to do with each other. Two sums of 32 bits and not one of 64, because only int32
arithmetic that wraps is used; whether a device wraps is tried once.

The hash that the weights are made with also makes the signs of sketches and the weights of places in statistics.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import DIGEST_FACTOR, DIGEST_SEEDS
from precflow.agent.measure.scratch import host_memory
from precflow.agent.measure.transfer import PIECE_BYTES

BLOCK = 16384  # words that are summed up together: their weights stay in the cache
BLOCK_BYTES = 4 * BLOCK

_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B  # factors of the hash
_BYTES = (torch.uint8, torch.int8, torch.bool)
_FACTOR = DIGEST_FACTOR - (1 << 32)  # as int32
_HOST_ROWS = 16  # blocks at once: their words and what is made of them stay in the cache
_DEVICE_ROWS = 256
_KNOWN_CHECKSUMS = (16924512, -1924067348)  # of the first BLOCK values of mix32


def to_int32(value: int) -> int:
    """Return the int32 that has the same 32 bits as an unsigned value.

    >>> to_int32(0xFFFFFFFF), to_int32(0x7FEB352D)
    (-1, 2146121005)
    """
    return value - (1 << 32) if value >= 1 << 31 else value


def shift_right(values: torch.Tensor, places: int) -> torch.Tensor:
    """Return int32 values shifted right with zeros coming in; torch's own shift repeats the sign."""
    return (values >> places) & ((1 << (32 - places)) - 1)


def mix32(values: torch.Tensor) -> torch.Tensor:
    """Return a hash of each int32, one to one, with int32 arithmetic that wraps and nothing else."""
    values = values ^ shift_right(values, 16)
    values = values * to_int32(_FIRST)
    values = values ^ shift_right(values, 15)
    values = values * to_int32(_SECOND)
    return values ^ shift_right(values, 16)


def mix32_of(value: int) -> int:
    """Return :func:`mix32` of one number, unsigned, in Python.

    >>> mix32_of(0), hex(mix32_of(1))
    (0, '0x688990c0')
    """
    value &= 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * _FIRST) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * _SECOND) & 0xFFFFFFFF
    return value ^ (value >> 16)


class _Tables(NamedTuple):
    """For each place in a block: what its word is mixed with ``[BLOCK]``, and its weights in the two sums ``[2, BLOCK]``."""

    mixing: torch.Tensor
    weights: torch.Tensor

    def cut(self, length: int) -> _Tables:
        """Return the tables of the first places of a block."""
        return self if length == BLOCK else _Tables(self.mixing[:length], self.weights[:, :length])


_tables: Dict[torch.device, _Tables] = {}
_wrapping: Dict[torch.device, bool] = {}


def block_checksums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the checksums of all blocks, int32 ``[blocks, 2]``, on the tensor's device or, where that does not wrap, the CPU.

    The bytes are those of the elements in C order, with zeros up to a multiple of four; the last block may be shorter. This
    does not wait for the device, except for one self-test per device.

    Args:
        tensor: With plain bytes (``content_id.has_plain_bytes``).
    """
    source = tensor.detach()
    if not wraps(source.device):
        source = source.cpu()
    parts = [_flat_checksums(words) for words in _words_in_order(as_joinable(source))]
    if not parts:
        return torch.empty((0, 2), dtype=torch.int32, device=source.device)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def as_joinable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in a type that torch can copy and join: float8, float4 and other rare types of one byte as bytes.

    torch 2.1 joins no float8, 2.13 no float4, and none of them copies what is narrower.
    """
    return tensor.view(torch.uint8) if tensor.element_size() == 1 and tensor.dtype not in _BYTES else tensor


def row_checksums(words: torch.Tensor) -> torch.Tensor:
    """Return the checksums of each row, int32 ``[rows, 2]``.

    Args:
        words: int32 ``[rows, at most BLOCK]``: blocks of one tensor, or equally long tensors one a row.
    """
    tables, (rows, length) = _tables_on(words.device), words.shape
    mixing, weights = tables.cut(length)
    at_once = max(1, _rows_at_once(words.device) * BLOCK // max(length, 1))
    parts: List[torch.Tensor] = []
    for start in range(0, rows, at_once):
        some = words[start : start + at_once]
        mixed, moved = _memory(some.shape[0], length, words.device)
        parts.append(_sum_up(torch.bitwise_xor(some, mixing, out=mixed), moved, weights))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def place_weights(device: torch.device) -> torch.Tensor:
    """Return what the word of each place in a block is mixed with, int32 ``[BLOCK]``: as random as any weight."""
    return _tables_on(device).mixing


def wraps(device: torch.device) -> bool:
    """Tell whether int32 sums and products wrap on a device. The first call for a device tries it, and waits for it.

    Raises:
        RuntimeError: They do not wrap on the CPU: there is no content id then.
    """
    if device not in _wrapping:
        words = mix32(torch.arange(BLOCK, dtype=torch.int32)).view(1, BLOCK)
        _wrapping[device] = row_checksums(words.to(device)).tolist() == [list(_KNOWN_CHECKSUMS)]
        if device.type == "cpu" and not _wrapping[device]:
            raise RuntimeError("int32 arithmetic of torch %s does not wrap on this CPU" % torch.__version__)
    return _wrapping[device]


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as int32 words ``[count]``, zeros added; shares its memory where it can."""
    return _to_words(_flat_bytes(tensor))


def _flat_checksums(words: torch.Tensor) -> torch.Tensor:
    """Return the checksums of the blocks of words ``[count]``; the last one, which may be shorter, goes with the others."""
    count = words.numel()
    if count <= BLOCK:
        return row_checksums(words.view(1, -1))
    tables = _tables_on(words.device)
    at_once = _rows_at_once(words.device) * BLOCK
    parts: List[torch.Tensor] = []
    for start in range(0, count, at_once):
        some = words if count <= at_once else words[start : start + at_once]
        rows, rest = divmod(some.numel(), BLOCK)
        mixed, moved = _memory(rows + (rest > 0), BLOCK, words.device)
        if rest:
            torch.bitwise_xor(some[rows * BLOCK :], tables.mixing[:rest], out=mixed[rows, :rest])
            mixed[rows, rest:].zero_()  # 0 is still 0 after _sum_up has mixed it, and adds nothing
        if rows:
            torch.bitwise_xor(some[: rows * BLOCK].view(rows, BLOCK), tables.mixing, out=mixed[:rows])
        parts.append(_sum_up(mixed, moved, tables.weights))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sum_up(mixed: torch.Tensor, moved: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return both sums of each row of words that were mixed with their places; ``mixed`` and ``moved`` are written to."""
    # A product carries low bits up only, so the high half is folded down into the low one behind it.
    mixed.mul_(_FACTOR)
    torch.bitwise_right_shift(mixed, 16, out=moved)
    mixed.bitwise_xor_(moved.bitwise_and_(0xFFFF))  # torch's shift repeats the sign: only the lower 16 bits are wanted
    if mixed.device.type == "cpu":
        return torch.mm(mixed, weights.t())
    return (mixed.unsqueeze(1) * weights).sum(-1, dtype=torch.int32)  # few devices have a product of matrices of integers


def _rows_at_once(device: torch.device) -> int:
    return _HOST_ROWS if device.type == "cpu" else _DEVICE_ROWS


def _memory(rows: int, length: int, device: torch.device) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return two int32 ``[rows, length]`` to work in."""
    if device.type == "cpu":
        shape, room = (rows, length), _HOST_ROWS * BLOCK
        return host_memory("mixed words", shape, torch.int32, room), host_memory("moved words", shape, torch.int32, room)
    mixed = torch.empty((rows, length), dtype=torch.int32, device=device)
    return mixed, torch.empty_like(mixed)


def _tables_on(device: torch.device) -> _Tables:
    if device not in _tables:
        with torch.inference_mode(mode=False):  # a tensor that is made in that mode cannot be used outside of it
            places = torch.arange(BLOCK, dtype=torch.int32)
            first, second = (mix32(places + to_int32(seed)) for seed in DIGEST_SEEDS)
            # Odd weights of the first sum: a product with an odd number loses no bit modulo 2^32.
            _tables[device] = _Tables(first.to(device), torch.stack([first | 1, second]).to(device))
    return _tables[device]


def _words_in_order(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the words ``[count]`` piece by piece, whole blocks except for the last piece."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        if tensor.numel():
            yield _to_words(_flat_bytes(tensor))
        return
    # A piece may end inside a block: what it has beyond its last whole block goes before the next piece.
    rest: Optional[torch.Tensor] = None
    for piece in _pieces(tensor):
        flat = _flat_bytes(piece)
        if rest is not None and rest.numel():
            flat = torch.cat([rest, flat])
        whole = flat.numel() // BLOCK_BYTES * BLOCK_BYTES
        if whole:
            yield _to_words(flat[:whole])
        rest = flat[whole:]
    if rest is not None and rest.numel():
        yield _to_words(rest)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield contiguous tensors that hold the elements one behind the other, without a copy where memory is in order."""
    size = tensor.numel() * tensor.element_size()
    lazy = tensor.is_conj() or tensor.is_neg()
    if size <= PIECE_BYTES or (tensor.is_contiguous() and not lazy):
        yield tensor.resolve_conj().resolve_neg().contiguous()
        return
    if tensor.dim() > 1 and size // tensor.shape[0] > PIECE_BYTES:
        for part in tensor.unbind(0):
            for piece in _pieces(part):
                yield piece
        return
    for part in tensor.split(max(1, PIECE_BYTES * tensor.shape[0] // size)):
        yield part.resolve_conj().resolve_neg().contiguous()


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    if flat.numel() == 1:  # a column of a single row is contiguous, and keeps the stride of the row
        flat = flat.as_strided((1,), (1,))
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def _to_words(flat: torch.Tensor) -> torch.Tensor:
    missing = -flat.numel() % 4
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    elif flat.storage_offset() % 4:  # torch views bytes as words only where the words are aligned
        flat = flat.clone()
    return flat.view(torch.int32)

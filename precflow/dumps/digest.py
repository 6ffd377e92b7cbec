"""Computes the content id of a tensor's bytes for the judge: the same function that agents compute on their devices.

The bytes (little-endian, C order, padded with zeros to whole words) are read as uint32 words in blocks of 16384. Each word is
mixed with a weight that depends on its place in the block. Each block has two checksums, its lanes: the sum of the mixed words
times weights of that lane, modulo 2^32. Such sums come out the same in any order, so a device or several threads can add them
up. The id is BLAKE2b-128 over type and shape (``float32[3,77]``) and the lanes of all blocks, 8 bytes for each 64 KiB.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import DIGEST_FACTOR, DIGEST_SEEDS, DIGEST_SIZE
from precflow.dumps.dtypes import name_of
from precflow.dumps.mapped_pages import address, release

Words = npt.NDArray[np.uint32]

BLOCK_WORDS = 16384  # words that are summed up together: their weights stay in the cache
BLOCK_BYTES = 4 * BLOCK_WORDS
WORTH_COMPILING = 1 << 29  # bytes; with less to read, NumPy is done before numba is even loaded
_STRETCH = 256  # blocks after which the pages of a mapped file are released: 16 MiB
_HALF, _ODD, _WORD = np.uint32(16), np.uint32(1), 0xFFFFFFFF
_LOCK = threading.Lock()


def content_id(array: npt.NDArray[Any]) -> str:
    """Return the content id of a tensor, 32 hex digits; its type must be one that a dump can hold.

    >>> content_id(np.array([[1.0, -2.5]], np.float32))
    '824087d03562cbda6502751f0c07382a'
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    return id_of_lanes(name_of(array.dtype), array.shape, lanes(flat.view(np.uint8)))


def id_of_lanes(dtype: str, shape: Iterable[int], blocks: Words) -> str:
    """Return the content id of a tensor from the lanes of its blocks.

    Args:
        dtype: Name of the element type, such as ``bfloat16``.
        shape: Sizes.
        blocks: uint32 ``[blocks, 2]``, the lanes of all blocks in order.
    """
    state = _begin_id(dtype, shape)
    state.update(np.ascontiguousarray(blocks, "<u4").tobytes())
    return state.hexdigest()


def _begin_id(dtype: str, shape: Iterable[int]) -> hashlib.blake2b:
    return hashlib.blake2b(f"{dtype}[{','.join(map(str, shape))}]".encode("ascii"), digest_size=DIGEST_SIZE)


def content_ids(dtype: str, shape: Iterable[int], tensors: npt.NDArray[np.uint8]) -> list[str]:
    """Return the content ids of many small tensors of one type and shape: those that :func:`content_id` gives, much sooner.

    Args:
        dtype: Name of the element type.
        shape: Sizes of each.
        tensors: Their bytes, ``[tensors, bytes]``; at least one byte each and at most ``BLOCK_BYTES``.
    """
    number, size = tensors.shape
    seen = np.ascontiguousarray(np.pad(tensors, ((0, 0), (0, -size % 4)))).view("<u4")
    first, second = weights()[:, : seen.shape[1]]
    mixed = seen ^ first
    mixed *= np.uint32(DIGEST_FACTOR)
    mixed ^= mixed >> _HALF
    blocks = np.empty((number, 2), "<u4")
    blocks[:, 0] = np.add.reduce(mixed * (first | _ODD), axis=1, dtype=np.uint32)
    blocks[:, 1] = np.add.reduce(mixed * second, axis=1, dtype=np.uint32)
    start, data, ids = _begin_id(dtype, shape), blocks.tobytes(), []
    for offset in range(0, len(data), 8):
        state = start.copy()
        state.update(data[offset : offset + 8])
        ids.append(state.hexdigest())
    return ids


def lanes(data: npt.NDArray[np.uint8], *, compiled: bool | None = None) -> Words:
    """Return the lanes of some bytes, uint32 ``[blocks, 2]``.

    Several threads may call it at once: most of the work runs without the interpreter's lock.

    Args:
        data: Bytes of a whole tensor, or of a part of it that starts at a block.
        compiled: Use the compiled function if numba is installed. By default it is used once this process has read
            ``WORTH_COMPILING`` bytes.
    """
    wanted = _reads_much(data.size) if compiled is None else compiled
    measure = (_find_compiled() if wanted else None) or _add_lanes_by_numpy
    blocks = no_lanes(data.size)
    for start in range(0, len(blocks), _STRETCH):
        part, mine = data[start * BLOCK_BYTES : (start + _STRETCH) * BLOCK_BYTES], blocks[start : start + _STRETCH]
        measure(words(part), weights(), mine)
        add_last(part, mine)
        release(part)
    return blocks


def no_lanes(size: int) -> Words:
    """Return zeros, uint32 ``[blocks, 2]``, to which the lanes of ``size`` bytes are added."""
    return np.zeros((-(-size // BLOCK_BYTES), 2), np.uint32)


def words(data: npt.NDArray[np.uint8]) -> Words:
    """Return the whole words of some bytes, little-endian and read-only; copied if their address is not a multiple of 4."""
    whole = data[: data.size // 4 * 4]  # the rest, one to three bytes, is for `add_last`
    # A tensor of bytes or halves may begin at any address in a shard. Words at an odd one are another array type for numba.
    aligned: Words = (whole if address(whole) % 4 == 0 else whole.copy()).view("<u4")
    aligned.flags.writeable = False
    return aligned


def add_last(data: npt.NDArray[np.uint8], blocks: Words) -> None:
    """Add the last one to three bytes to the lanes, padded with zeros to a word; nothing if all words are whole.

    Args:
        data: Bytes of a whole tensor, or of its last part, which starts at a block.
        blocks: The lanes of these bytes, which already contain all whole words; the last row is changed.
    """
    odd = data.size % 4
    if odd:
        word = int.from_bytes(data[-odd:].tobytes(), "little")
        place = data.size // 4 % BLOCK_WORDS
        first, second = (int(weights()[lane, place]) for lane in (0, 1))  # Python integers, so `& _WORD` does the modulo
        mixed = (word ^ first) * DIGEST_FACTOR & _WORD
        mixed ^= mixed >> 16
        blocks[-1] += np.array([mixed * (first | 1) & _WORD, mixed * second & _WORD], np.uint32)


@functools.cache
def weights() -> Words:
    """Return two weights for every place in a block, uint32 ``[2, BLOCK_WORDS]``.

    The first is mixed into the word and, made odd, is also the weight of the first lane. The second is the weight of the second
    lane.
    """
    # Each place, moved by the seed of its lane, is hashed as the agents' ``mix32`` does it.
    hashed = np.arange(BLOCK_WORDS, dtype=np.uint32) + np.array(DIGEST_SEEDS, np.uint32)[:, np.newaxis]
    hashed = (hashed ^ hashed >> _HALF) * np.uint32(0x7FEB352D)
    hashed = (hashed ^ hashed >> np.uint32(15)) * np.uint32(0x846CA68B)
    hashed ^= hashed >> _HALF
    hashed.flags.writeable = False
    return hashed


def _add_lanes_by_numpy(seen: Words, weight: Words, blocks: Words) -> None:
    """Set the lanes of every block, as the compiled function does."""
    for number in range(len(blocks)):
        block = seen[number * BLOCK_WORDS : (number + 1) * BLOCK_WORDS]
        first, second = weight[0, : block.size], weight[1, : block.size]
        mixed = block ^ first
        mixed *= np.uint32(DIGEST_FACTOR)
        mixed ^= mixed >> _HALF
        blocks[number, 1] = np.add.reduce(mixed * second, dtype=np.uint32)
        mixed *= first | _ODD
        blocks[number, 0] = np.add.reduce(mixed, dtype=np.uint32)


_read = 0  # bytes whose lanes this process was asked for so far


def _reads_much(size: int) -> bool:
    """Add to the count of bytes that this process has read, and tell whether compiling is worth it by now."""
    global _read  # noqa: PLW0603  a process reads one dump or many, in any number of calls
    with _LOCK:
        _read += size
        return _read >= WORTH_COMPILING


def _find_compiled() -> Callable[..., None] | None:
    with _LOCK:  # `functools.cache` alone would let two threads compile at the same time
        return _load_and_test()


@functools.cache
def _load_and_test() -> Callable[..., None] | None:
    """Return the compiled function if numba is installed and gives the same lanes as NumPy for a sample, else ``None``."""
    if importlib.util.find_spec("numba") is None:
        return None
    sample, blocks, expected = weights()[1, :77], np.zeros((1, 2), np.uint32), np.zeros((1, 2), np.uint32)
    try:
        from precflow.dumps.compiled.lanes import measure_lanes  # noqa: PLC0415  imports numba, which takes 0.2 s

        measure_lanes(sample, weights(), blocks)
    except Exception:  # noqa: BLE001  numba and LLVM fail in many ways, and NumPy can do all of this
        return None
    _add_lanes_by_numpy(sample, weights(), expected)
    return measure_lanes if np.array_equal(blocks, expected) else None

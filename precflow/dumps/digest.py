"""Content id of a tensor's bytes on the judge's side: the very function that agents compute on their devices.

The bytes (little-endian, C order, zeros behind them up to whole words) are uint32 words in blocks of 16384. Each word is mixed
with a weight that hangs on its place in the block, and each of a block's two lanes is the sum of the mixed words times weights
of its own, modulo 2^32; so lanes are added up in any order, by anyone. The id is BLAKE2b-128 over ``float32[3,77]`` and the
lanes, block by block: 8 bytes for each 64 KiB.
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

from precflow.agent.contract import DIGEST_SIZE
from precflow.dumps.dtypes import name_of
from precflow.dumps.mapped_pages import address, release

Words = npt.NDArray[np.uint32]

BLOCK_WORDS = 16384
BLOCK_BYTES = 4 * BLOCK_WORDS
SEEDS = (0x243F6A88, 0x85A308D3)
FACTOR = 0x9E3779B1
WORTH_COMPILING = 1 << 29  # bytes; NumPy reads less than that before numba is even loaded
_STRETCH = 256  # blocks after which the pages of a mapped file are given back: 16 MiB
_HALF, _ODD, _WORD = np.uint32(16), np.uint32(1), 0xFFFFFFFF
_LOCK = threading.Lock()


def content_id(array: npt.NDArray[Any]) -> str:
    """Return the content id of a tensor of a type that a dump can hold, 32 hex digits.

    >>> content_id(np.array([[1.0, -2.5]], np.float32))
    '824087d03562cbda6502751f0c07382a'
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    return id_of_lanes(name_of(array.dtype), array.shape, lanes(flat.view(np.uint8)))


def id_of_lanes(dtype: str, shape: Iterable[int], blocks: Words) -> str:
    """Return the content id of a tensor whose lanes are known.

    Args:
        dtype: Name of the element type, such as ``bfloat16``.
        shape: Sizes.
        blocks: uint32 ``[blocks, 2]``, lanes of all blocks in order.
    """
    state = hashlib.blake2b(f"{dtype}[{','.join(map(str, shape))}]".encode("ascii"), digest_size=DIGEST_SIZE)
    state.update(np.ascontiguousarray(blocks, "<u4").tobytes())
    return state.hexdigest()


def lanes(data: npt.NDArray[np.uint8], *, compiled: bool | None = None) -> Words:
    """Return the lanes of bytes, uint32 ``[blocks, 2]``; threads may call it at once, and most of it holds no lock.

    Args:
        data: Bytes of a whole tensor, or of a part of it that starts with a block.
        compiled: Read them by the compiled form where there is one; by default once this process has much to read.
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
    """Return zeros to add the lanes of so many bytes to, uint32 ``[blocks, 2]``."""
    return np.zeros((-(-size // BLOCK_BYTES), 2), np.uint32)


def words(data: npt.NDArray[np.uint8]) -> Words:
    """Return the whole words of bytes, little-endian and read-only; copied where they do not lie at whole words."""
    whole = data[: data.size // 4 * 4]
    seen: Words = (whole if address(whole) % 4 == 0 else whole.copy()).view("<u4")
    seen.flags.writeable = False
    return seen


def add_last(data: npt.NDArray[np.uint8], blocks: Words) -> None:
    """Add the word that the last one to three bytes make with zeros behind them; nothing where all words are whole.

    Args:
        data: Bytes of a whole tensor, or of its last part, which starts with a block.
        blocks: Their lanes, with all whole words summed up.
    """
    odd = data.size % 4
    if odd:
        word = int.from_bytes(data[-odd:].tobytes(), "little")
        place = data.size // 4 % BLOCK_WORDS
        first, second = (int(weights()[lane, place]) for lane in (0, 1))
        mixed = (word ^ first) * FACTOR & _WORD
        mixed ^= mixed >> 16
        blocks[-1] += np.array([mixed * (first | 1) & _WORD, mixed * second & _WORD], np.uint32)


@functools.cache
def weights() -> Words:
    """Return two weights for every place in a block, uint32 ``[2, BLOCK_WORDS]``.

    Words are mixed with the first; made odd, it is the weight of the first lane. The second is that of the second lane.
    """
    places = np.arange(BLOCK_WORDS, dtype=np.uint32)
    made = np.stack([_mix(places + np.uint32(seed)) for seed in SEEDS])
    made.flags.writeable = False
    return made


def _mix(values: Words) -> Words:
    """Return the agents' ``mix32`` of each value."""
    values = (values ^ values >> _HALF) * np.uint32(0x7FEB352D)
    values = (values ^ values >> np.uint32(15)) * np.uint32(0x846CA68B)
    return values ^ values >> _HALF


def _add_lanes_by_numpy(seen: Words, weight: Words, blocks: Words) -> None:
    """Do what the compiled form does: set the lanes of every block."""
    for number in range(len(blocks)):
        block = seen[number * BLOCK_WORDS : (number + 1) * BLOCK_WORDS]
        first, second = weight[0, : block.size], weight[1, : block.size]
        mixed = block ^ first
        mixed *= np.uint32(FACTOR)
        mixed ^= mixed >> _HALF
        blocks[number, 1] = np.add.reduce(mixed * second, dtype=np.uint32)
        mixed *= first | _ODD
        blocks[number, 0] = np.add.reduce(mixed, dtype=np.uint32)


_read = 0  # bytes so far, by NumPy


def _reads_much(size: int) -> bool:
    """Count the bytes that NumPy reads in this process, and say whether it is time to compile."""
    global _read  # noqa: PLW0603  a process reads one dump or many, in any number of calls
    with _LOCK:
        _read += size
        return _read >= WORTH_COMPILING


def _find_compiled() -> Callable[..., None] | None:
    with _LOCK:
        return _load_and_test()


@functools.cache
def _load_and_test() -> Callable[..., None] | None:
    """Return the compiled form where numba is there and it gives what NumPy gives."""
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

"""Pairs of tensors and lists of records, the same in every process; NumPy only, because the peer's interpreter runs it too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# one transformer layer of a text encoder, 512 wide, batch 4 of 77 tokens
SHAPES = (*[(4, 77, 512)] * 8, *[(4, 77, 2048)] * 3, (4, 8, 77, 77))
_POOL = 1 << 22
_BETWEEN = 7 * 4096  # bytes: no power of two is a distance of the two sides then


def pair(size: int, error: float = 1e-6) -> tuple[Array, Array]:
    """Return reference and target of ``size`` float32: standard normal, and off by an absolute error that is normal too."""
    random = np.random.default_rng(7)
    reference = np.resize(random.standard_normal(_POOL, np.float32), size)
    noise = np.resize(random.standard_normal(_POOL, np.float32), size)
    noise *= np.float32(error)
    noise += reference
    return apart(reference, noise)


def apart(reference: Array, target: Array) -> tuple[Array, Array]:
    """Return copies of two flat arrays at a distance that no cache minds.

    Two arrays one behind the other lie a power of two and a page apart, where some sizes make AMD's first cache take the one
    for the other (it guesses ways by a hash of addresses): whatever reads both at once is half as fast, by chance.
    """
    room = np.empty(reference.nbytes + _BETWEEN + target.nbytes, np.uint8)
    places = slice(0, reference.nbytes), slice(reference.nbytes + _BETWEEN, room.size)
    first, second = (room[place].view(side.dtype) for place, side in zip(places, (reference, target), strict=True))
    first[:], second[:] = reference, target
    return first, second


def records(gigabytes: float) -> Iterator[tuple[str, Array, Array]]:
    """Yield name, reference and target of float32 records until both sides together hold ``gigabytes`` (1e9 bytes)."""
    reference, target = pair(_POOL)
    left, number = gigabytes * 1e9, 0
    while left > 0:
        shape = SHAPES[number % len(SHAPES)]
        size = int(np.prod(shape))
        start = (number * 10007) % (_POOL - size)
        place = slice(start, start + size)
        yield (
            f"layers.{number}.linear",
            (reference[place] + np.float32(number)).reshape(shape),
            (target[place] + np.float32(number)).reshape(shape),
        )
        left -= 8 * size
        number += 1


def small_pairs(count: int) -> Iterator[tuple[Array, Array]]:
    """Yield so many pairs of 4 x 16 float32, no two of them equal."""
    random = np.random.default_rng(8)
    for _ in range(count):
        reference = random.standard_normal((4, 16), np.float32)
        yield reference, reference * np.float32(1 + 1e-6)


def warm(folder: Path) -> None:
    """Read all files of a folder once, so that they lie in the page cache."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass

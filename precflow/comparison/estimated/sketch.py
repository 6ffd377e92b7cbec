"""Sketches on the judge's side: 509 sums of signed values, from which the norm of a difference is estimated.

They are made exactly as the agent makes them (``precflow/agent/measure/sketch.py``), so that a tensor of one side can be
compared with a sketch of the other. It is linear: the sketch of a difference is the difference of the sketches. A prime
number of buckets and signs that are read at a hashed offset keep rows, columns and constant shifts from falling into a
pattern.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats

BUCKETS = 509
BLOCK = (65536 // BUCKETS) * BUCKETS
"""Elements that share one offset into the signs."""

ROOT_MEAN_SQUARE_ERROR = 1 / (2 * BUCKETS) ** 0.5
"""Of an estimated norm, relative to it: 3.1 %."""

# An estimate below 0.75 of a limit passes, one above 1 / 0.75 = 1.33 of it fails, and between these it decides nothing. The
# estimate is off by 3.1 % (root mean square), the band by eight times that: no sketch may pass what the tensors would fail.
DECISIVE = 0.75

_OFFSETS = 1 << 20
_HALF = np.uint32(16)


def make_sketch(values: Floats) -> Floats:
    """Return the sketch of some values, float64 ``[BUCKETS]``.

    Args:
        values: Flat, finite; 0 in place of elements that are not ordinary numbers.
    """
    total = np.zeros(BUCKETS)
    for number, start in enumerate(range(0, values.size, BLOCK)):
        total += sketch_block(values[start : start + BLOCK], number)
    return total


def sketch_block(values: Floats, number: int) -> Floats:
    """Return the sums that a block adds to the sketch of its tensor.

    Args:
        values: Its elements, at most ``BLOCK``.
        number: Which block of the tensor it is, from 0.
    """
    offset = int(mix32(np.array([number & 0xFFFFFFFF], np.uint32))[0]) % _OFFSETS
    signed = np.zeros(-(-values.size // BUCKETS) * BUCKETS)
    np.multiply(values, _signs()[offset : offset + values.size], out=signed[: values.size])
    summed: Floats = signed.reshape(-1, BUCKETS).sum(axis=0)
    return summed


def estimate_norm(vector: Floats) -> float:
    """Return the Euclidean norm of a vector; no intermediate result overflows."""
    largest = float(np.max(np.abs(vector), initial=0.0))
    if not largest or not np.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(vector / largest))


def mix32(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the agents' ``mix32`` of each value, uint32."""
    values = (values ^ values >> _HALF) * np.uint32(0x7FEB352D)
    values = (values ^ values >> np.uint32(15)) * np.uint32(0x846CA68B)
    return values ^ values >> _HALF


@functools.cache
def _signs() -> npt.NDArray[np.float32]:
    bits = mix32(np.arange(_OFFSETS + BLOCK, dtype=np.uint32)) & np.uint32(1)
    signs: npt.NDArray[np.float32] = np.float32(1) - np.float32(2) * bits.astype(np.float32)
    signs.flags.writeable = False
    return signs

"""Computes sketches for the judge: 509 sums of signed values, from which the norm of a difference is estimated.

The agent computes the same sketch (``precflow/agent/measure/sketch.py``), so that a tensor of one side can be compared with a
sketch of the other. Sketches are linear: the sketch of a difference is the difference of the sketches. The number of buckets
is prime, and signs are read at a hashed offset, so that rows, columns and constant shifts do not all fall into a few buckets
with the same sign.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from precflow.comparison.fused.value_classes import Floats

BUCKETS = 509
BLOCK = (65536 // BUCKETS) * BUCKETS
"""Elements that share one offset into the signs."""

# An estimate below 0.75 of a limit passes, one above 1 / 0.75 = 1.33 of it fails, and one in between decides nothing. The band
# is eight times as wide as the error of an estimate, 3.1 % (root mean square), so that no sketch passes what the tensors fail.
DECISIVE = 0.75

_OFFSETS = 1 << 20
_HALF = np.uint32(16)


def sketch_block(values: Floats, number: int) -> Floats:
    """Return the sums that one block of a tensor adds to its sketch, float64 ``[BUCKETS]``.

    Args:
        values: Elements of the block, at most ``BLOCK``.
        number: Number of the block in the tensor, from 0.
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
    """Return each value hashed as the agents' ``mix32`` does it, uint32."""
    values = (values ^ values >> _HALF) * np.uint32(0x7FEB352D)
    values = (values ^ values >> np.uint32(15)) * np.uint32(0x846CA68B)
    return values ^ values >> _HALF


@functools.cache
def _signs() -> npt.NDArray[np.float32]:
    """Return pseudo-random +1 and -1; a block at the largest offset still finds ``BLOCK`` of them."""
    bits = mix32(np.arange(_OFFSETS + BLOCK, dtype=np.uint32)) & np.uint32(1)
    signs: npt.NDArray[np.float32] = np.float32(1) - np.float32(2) * bits.astype(np.float32)
    signs.flags.writeable = False
    return signs

"""Tensors that an agent compressed, as ``capture.compress`` asks for: bytes of equal weight side by side, then zlib."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import COMPRESSED_BLOCK
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.errors import DumpError


def restored(data: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Return the tensor that was compressed, read-only and in memory as a whole.

    Args:
        data: What the shard holds.
        dtype: Name of the element type, from the record.
        shape: Sizes, from the record.
        name: Name of the shard, for messages.

    Raises:
        DumpError: It is not a tensor of this type and shape.
    """
    kind = NUMPY_DTYPES[dtype]
    size = math.prod(shape) * kind.itemsize
    try:
        # One byte more than there should be is enough to see that there are more.
        plain = np.frombuffer(zlib.decompressobj().decompress(data.data, size + 1), np.uint8)
    except zlib.error as error:
        raise DumpError(f"{name} holds a tensor that cannot be decompressed: {error}") from error
    if plain.size != size:
        raise DumpError(f"{name} holds a compressed tensor of another size than {dtype} {list(shape)}")
    whole = np.empty(size, np.uint8)
    for start in range(0, size, COMPRESSED_BLOCK):
        planes = plain[start : start + COMPRESSED_BLOCK].reshape(kind.itemsize, -1)
        whole[start : start + COMPRESSED_BLOCK] = planes.T.reshape(-1)
    whole.flags.writeable = False
    return whole.view(kind).reshape(shape)

"""Tensors that an agent compressed, as ``capture.compress`` asks for: bytes of equal weight side by side, then zlib.

They are restored block by block. What is small is kept in memory, what is large in a file without a name that is mapped like a
shard: memory stays bounded by what is looked at, whatever a few compressed bytes unfold to.
"""

from __future__ import annotations

import math
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import COMPRESSED_BLOCK
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.errors import DumpError

IN_MEMORY = 1 << 26  # bytes; larger ones go to a file
_MOST_DENSE = 1032  # bytes that one byte of a zlib stream can stand for at the most
_TAKEN = 1 << 16  # compressed bytes that are looked at in one go


def restored(data: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Return the tensor that was compressed, read-only.

    Args:
        data: What the shard holds.
        dtype: Name of the element type, from the record.
        shape: Sizes, from the record.
        name: Name of the shard, for messages.

    Raises:
        DumpError: It is not a tensor of this type and shape, or the disk has no room for it.
    """
    if dtype not in NUMPY_DTYPES:
        raise DumpError(f"{name} holds a compressed tensor of unknown type {dtype!r}")
    kind = NUMPY_DTYPES[dtype]
    size = math.prod(shape) * kind.itemsize
    other = DumpError(f"{name} holds a compressed tensor of another size than {dtype} {list(shape)}")
    if size > _MOST_DENSE * (data.nbytes + 1):  # no room is made for what cannot be
        raise other
    try:
        elements = (block.reshape(kind.itemsize, -1).T.reshape(-1) for block in _blocks(data, size, other))
        if size <= IN_MEMORY:
            whole = np.concatenate([np.empty(0, np.uint8), *elements])
            whole.flags.writeable = False
            return whole.view(kind).reshape(shape)
        with tempfile.TemporaryFile(prefix="precflow-") as file:
            for part in elements:
                file.write(part.data)
            file.flush()
            return np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray).view(kind).reshape(shape)
    except zlib.error as error:
        raise DumpError(f"{name} holds a tensor that cannot be decompressed: {error}") from error
    except OSError as error:
        raise DumpError(
            f"{name} holds a tensor that needs {size / 1e6:.0f} MB in {tempfile.gettempdir()} to be read: {error.strerror}",
            next_step="free some space there, or name another folder: TMPDIR=DIR",
        ) from error


def _blocks(data: npt.NDArray[np.uint8], size: int, other: DumpError) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield what was compressed in blocks of ``COMPRESSED_BLOCK`` bytes; raise ``other`` unless it has ``size`` bytes.

    Raises:
        zlib.error: It is no such stream.
    """
    stream = zlib.decompressobj()
    held, left, place = bytearray(), size, 0
    while not stream.eof and (stream.unconsumed_tail or place < data.nbytes):
        taken = stream.unconsumed_tail
        if not taken:
            taken = data[place : place + _TAKEN].tobytes()
            place += len(taken)
        # One byte more than there should be is enough to see that there are more.
        held += stream.decompress(taken, min(COMPRESSED_BLOCK - len(held), left - len(held) + 1))
        if len(held) > left:
            raise other
        if len(held) == COMPRESSED_BLOCK:
            yield np.frombuffer(bytes(held), np.uint8)
            left -= len(held)
            held.clear()
    if len(held) != left or not stream.eof:
        raise other
    if held:
        yield np.frombuffer(bytes(held), np.uint8)

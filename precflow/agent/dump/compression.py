"""Compressing a tensor before it is stored, if that makes it smaller: bytes are regrouped by their place in the element.

``capture.compress`` switches it on. Rounding noise does not compress; zeros (after a ReLU, in masks), repeated rows and
integers do. The bytes are regrouped before zlib, because in neighbouring floats the bytes of sign and exponent are often
equal, and the bytes of the last digits are noise: ``a1 a2 b1 b2`` becomes ``a1 b1 a2 b2``.
"""

from __future__ import annotations

import zlib
from typing import Iterator

import torch

from precflow.agent.contract import COMPRESSED, COMPRESSED_BLOCK
from precflow.agent.dump.shard import ALIGNMENT, TensorEntry
from precflow.agent.measure.transfer import byte_pieces

_LEVEL = 1
_LEAST = 4096  # bytes; a smaller tensor is not worth the time
_PAYS = 0.8  # compress only if at most this share of the bytes remains


def compress_entry(entry: TensorEntry) -> TensorEntry:
    """Return an entry with the compressed tensor, or the entry itself if compression saves less than a fifth of the bytes.

    The saving is estimated from the first MiB. The compressed bytes are held in memory as a whole.
    """
    if entry.size < _LEAST or not _pays(entry):
        return entry
    packer = zlib.compressobj(_LEVEL)
    packed = bytearray()
    for block in _blocks(entry):
        packed += packer.compress(block)
    packed += packer.flush()
    packed += bytes(-len(packed) % ALIGNMENT)  # keeps the next tensor aligned; the zlib stream marks its own end
    return TensorEntry(entry.key + COMPRESSED, torch.frombuffer(packed, dtype=torch.uint8), private=True)


def _pays(entry: TensorEntry) -> bool:
    # `next(_blocks(entry))` would be a bug: a block is a raw view of memory that only the generator keeps alive, so the
    # generator needs a name that lives until the block has been read.
    blocks = _blocks(entry)
    first = next(blocks)
    return len(zlib.compress(first, _LEVEL)) <= _PAYS * len(first)


def _blocks(entry: TensorEntry) -> Iterator[memoryview]:
    """Yield the bytes in regrouped blocks: first the first byte of every element of the block, then every second byte, ..."""
    host = entry.host.contiguous().reshape(-1)
    flat = (torch.view_as_real(host).reshape(-1) if host.is_complex() else host).view(torch.uint8)
    for block in flat.split(COMPRESSED_BLOCK):
        for piece in byte_pieces(block.view(-1, entry.width).t().contiguous()):
            yield piece

"""Compressing a tensor before it is stored, where that makes it smaller: bytes of equal weight side by side, then zlib.

``capture.compress`` asks for it. Rounding noise does not compress; what does are zeros (after a ReLU, in masks), repeated
rows and integers. Side by side, because in neighbouring floats the bytes of sign and exponent are often equal, and those of the
last digits are noise.
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
_PAYS = 0.8  # share of the bytes that may be left


def compress_entry(entry: TensorEntry) -> TensorEntry:
    """Return an entry with the same tensor in fewer bytes, or the entry itself where it would take more than 0.8 of them.

    Whether it would is tried on the first MiB. What comes out is in memory as a whole.
    """
    if entry.size < _LEAST or not _pays(entry):
        return entry
    packer = zlib.compressobj(_LEVEL)
    packed = bytearray()
    for block in _blocks(entry):
        packed += packer.compress(block)
    packed += packer.flush()
    packed += bytes(-len(packed) % ALIGNMENT)
    return TensorEntry(entry.key + COMPRESSED, torch.frombuffer(packed, dtype=torch.uint8), private=True)


def _pays(entry: TensorEntry) -> bool:
    blocks = _blocks(entry)  # a name of its own: the memory of a block lives as long as the generator
    first = next(blocks)
    return len(zlib.compress(first, _LEVEL)) <= _PAYS * len(first)


def _blocks(entry: TensorEntry) -> Iterator[memoryview]:
    """Yield the bytes in blocks; in each come first the first bytes of all elements, then all second ones, and so on."""
    host = entry.host.contiguous().reshape(-1)
    flat = (torch.view_as_real(host).reshape(-1) if host.is_complex() else host).view(torch.uint8)
    for block in flat.split(COMPRESSED_BLOCK):
        for piece in byte_pieces(block.view(-1, entry.width).t().contiguous()):
            yield piece

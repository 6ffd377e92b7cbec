"""Compressing a tensor before it is stored, where that makes it smaller: bytes of equal weight side by side, then zlib.

``capture.compress`` asks for it. Rounding noise does not compress; what does are zeros (after a ReLU, in masks), repeated rows
and integers.
"""

from __future__ import annotations

import zlib
from typing import Iterator

import torch

from precflow.agent.contract import COMPRESSED, COMPRESSED_BLOCK
from precflow.agent.digest import byte_pieces
from precflow.agent.shard import ALIGNMENT, Entry

_LEVEL = 1
_LEAST = 4096  # bytes; a smaller tensor is not worth the time
_PAYS = 0.8  # share of the bytes that may be left


def compressed(entry: Entry) -> Entry:
    """Return an entry with the same tensor in fewer bytes, or the entry itself where it would take more than 0.8 of them.

    Whether it would is tried on the first MiB. What comes out is in memory as a whole.
    """
    if entry.size < _LEAST:
        return entry
    if not _pays(entry):
        return entry
    packer = zlib.compressobj(_LEVEL)
    made = bytearray()
    for block in _blocks(entry):
        made += packer.compress(block)
    made += packer.flush()
    made += bytes(-len(made) % ALIGNMENT)
    return Entry(entry.key + COMPRESSED, torch.frombuffer(made, dtype=torch.uint8), private=True)


def _pays(entry: Entry) -> bool:
    blocks = _blocks(entry)  # kept: its end would take the memory of the block along
    first = next(blocks)
    return len(zlib.compress(first, _LEVEL)) <= _PAYS * len(first)


def _blocks(entry: Entry) -> Iterator[memoryview]:
    """Yield the bytes in blocks, in each of which the first bytes of all elements come first, then the second ones."""
    host = entry.host.contiguous().reshape(-1)
    flat = (torch.view_as_real(host).reshape(-1) if host.is_complex() else host).view(torch.uint8)
    for block in flat.split(COMPRESSED_BLOCK):
        for piece in byte_pieces(block.view(-1, entry.width).t().contiguous()):
            yield piece

"""One safetensors file: an eight-byte length, a JSON header, and the bytes of the tensors behind each other.

The format is the one of https://github.com/huggingface/safetensors. It is written here because an agent brings no library
along, into interpreters in which nothing may be installed.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

from precflow.agent.contract import DIGEST_SIZE, SAFETENSORS_OF_DTYPE
from precflow.agent.digest import byte_count, byte_pieces, dtype_name

if TYPE_CHECKING:
    import torch

ALIGNMENT = 8  # the data begin at a multiple of this many bytes


class Entry(NamedTuple):
    """One tensor of a shard.

    Attributes:
        content: Content id; the tensor's key in the file.
        dtype: safetensors' name of the element type, such as ``BF16``.
        shape: Sizes.
        width: Bytes of one element.
        size: Bytes of all elements.
        pieces: The bytes, in C order.
    """

    content: str
    dtype: str
    shape: Tuple[int, ...]
    width: int
    size: int
    pieces: Iterable[Union[bytes, memoryview]]


class Written(NamedTuple):
    """What is known of a finished file: its ``bytes`` and its ``blake2b``, as the header of a dump lists them."""

    bytes: int
    blake2b: str


def storable(dtype: torch.dtype) -> bool:
    """Tell whether the format has a name for this element type."""
    return dtype_name(dtype) in SAFETENSORS_OF_DTYPE


def entry(content: str, host: torch.Tensor, *, copied: bool) -> Entry:
    """Return a CPU tensor as an entry; ``copied`` when the tensor may be written to before the entry is."""
    pieces: Iterable[Union[bytes, memoryview]] = byte_pieces(host)
    if copied:
        pieces = [bytes(piece) for piece in pieces]
    name = SAFETENSORS_OF_DTYPE[dtype_name(host.dtype)]
    return Entry(content, name, tuple(host.shape), host.element_size(), byte_count(host), pieces)


def header_bytes(entries: Sequence[Entry]) -> bytes:
    """Return the length and the JSON header of a file that holds the entries in this order."""
    described: Dict[str, Dict[str, object]] = {}
    offset = 0
    for each in entries:
        end = offset + each.size
        described[each.content] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(described, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_shard(path: str, entries: Sequence[Entry]) -> Written:
    """Write the entries to ``path`` under a temporary name, then rename; nothing half-written is left at ``path``.

    Wide elements come first, so that each tensor begins at a multiple of its element size and can be mapped.

    Raises:
        OSError: The file cannot be written; the temporary file has been removed.
    """
    ordered: List[Entry] = sorted(entries, key=lambda each: -each.width)
    checksum = hashlib.blake2b(digest_size=DIGEST_SIZE)
    size = 0
    partial = path + ".part"
    try:
        with open(partial, "wb") as file:
            for piece in _file_pieces(ordered):
                file.write(piece)
                checksum.update(piece)
                size += len(piece)
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.remove(partial)
        raise
    return Written(size, checksum.hexdigest())


def _file_pieces(entries: Sequence[Entry]) -> Iterable[Union[bytes, memoryview]]:
    yield header_bytes(entries)
    for each in entries:
        for piece in each.pieces:
            yield piece

"""Bringing tensors to the host, many with one copy, and the bytes that they have there."""

from __future__ import annotations

import ctypes
from typing import Iterator, List, Sequence

import torch

PIECE_BYTES = 64 << 20  # a larger tensor whose memory is not in order is copied piece by piece, never as a whole


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values on the CPU, without gradient and without a pending conjugation; a copy only where one is needed.

    They are in C order, unless that would copy more than ``PIECE_BYTES``. They are put in order here and not on the device,
    because there it would take memory that the model may need.
    """
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    return host if byte_count(host) > PIECE_BYTES else host.contiguous()


def to_hosts(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Return tensors on the CPU; all that lie on one device come in one copy.

    Args:
        tensors: Each with a multiple of four bytes.
    """
    hosts: List[torch.Tensor] = list(tensors)
    devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
    for device in devices:
        numbers = [number for number, each in enumerate(tensors) if each.device == device]
        # Each copy would wait until the device has done all that it was given, so all types travel together, as words.
        words = torch.cat([tensors[number].contiguous().view(-1).view(torch.int32) for number in numbers]).cpu()
        start = 0
        for number in numbers:
            tensor = tensors[number]
            count = byte_count(tensor) // 4
            # A clone begins at offset 0, as types of eight bytes need, and does not keep the memory of all results alive.
            hosts[number] = words[start : start + count].clone().view(tensor.dtype).view(tensor.shape)
            start += count
    return hosts


def byte_count(tensor: torch.Tensor) -> int:
    """Return how many bytes the elements take, in C order and without gaps."""
    return tensor.numel() * tensor.element_size()


def byte_pieces(host: torch.Tensor) -> Iterator[memoryview]:
    """Yield the little-endian bytes of a CPU tensor in C order, as one or several pieces.

    A piece is valid until the next one is asked for. NumPy is not needed: an agent may run where it is not installed.
    """
    size = byte_count(host)
    if size == 0:
        return
    if not host.is_contiguous() and size > PIECE_BYTES and host.dim() > 1:
        for part in host.unbind(0):
            for piece in byte_pieces(part):
                yield piece
        return
    packed = host.contiguous()  # kept alive by this frame while the caller reads its memory
    yield memoryview((ctypes.c_ubyte * size).from_address(packed.data_ptr())).cast("B")


def bytes_of(host: torch.Tensor) -> bytes:
    """Return the bytes of a small CPU tensor, in C order."""
    return b"".join(byte_pieces(host))

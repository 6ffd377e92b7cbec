"""Content id of a tensor: what makes two tensors, on any device and in any process, the same evidence."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import lru_cache
from typing import Dict, Iterator, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.measure.checksums import PIECE_BYTES, lanes

_DTYPE_NAMES: Dict[torch.dtype, str] = {}
_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__
_FUNCTORCH = getattr(sys.modules["torch._C"], "_functorch", None)  # private in every version, and absent in some
_IS_WRAPPED_BY_FUNC = getattr(_FUNCTORCH, "is_functorch_wrapped_tensor", None)


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of an element type without the prefix, such as ``bfloat16``."""
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).rpartition(".")[2]
    return name


def readable(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor has plain bytes behind it.

    Sparse, quantized and meta tensors have not, nor have wrappers: those of ``torch.func`` and subclasses that handle
    dispatch themselves (fake and distributed tensors). They are recorded by type and shape, with an empty content id.
    """
    if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_meta or tensor.is_quantized or tensor.is_nested or _wrapped_by_func(tensor))


def _wrapped_by_func(tensor: torch.Tensor) -> bool:
    return bool(_IS_WRAPPED_BY_FUNC is not None and _IS_WRAPPED_BY_FUNC(tensor))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values on the CPU, without gradient and without a pending conjugation; a copy only where one is needed.

    They are in C order, unless that would copy more than ``PIECE_BYTES``. Rearranging is done here because on a device it
    would disturb the device's allocator.
    """
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    return host if byte_count(host) > PIECE_BYTES else host.contiguous()


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


def content_id(tensor: torch.Tensor) -> str:
    """Return the content id, 32 hex digits; ``""`` where there are no plain bytes (see :func:`readable`).

    blake2b-128 over ``float32[3,77]`` and the checksums of the blocks (:mod:`precflow.agent.measure.checksums`).
    Type and shape are part of it, strides and device are not. Two NaNs with other payloads, and ``-0.0`` and ``0.0``, are
    different contents.
    """
    with DisableTorchFunction(), torch.no_grad():  # reading is nobody's operator
        if not readable(tensor):
            return ""
        return named(tensor.dtype, tensor.shape, bytes_of(lanes(tensor).cpu()))


def named(dtype: torch.dtype, shape: Tuple[int, ...], checksums: bytes) -> str:
    """Return the content id of a tensor of which the checksums are known, as little-endian words."""
    return hashlib.blake2b(_head(dtype, shape) + checksums, digest_size=DIGEST_SIZE).hexdigest()


@lru_cache(maxsize=8192)
def _head(dtype: torch.dtype, shape: Tuple[int, ...]) -> bytes:
    return ("%s[%s]" % (dtype_name(dtype), ",".join(map(str, shape)))).encode("ascii")

"""Content id of a tensor: what makes two tensors, on any device and in any process, the same evidence."""

from __future__ import annotations

import hashlib
import sys
from functools import lru_cache
from typing import Any, Dict, Mapping, Tuple

import torch
from torch._C import DisableTorchFunction

from precflow.agent.contract import DIGEST_SIZE
from precflow.agent.measure.checksums import block_checksums
from precflow.agent.measure.transfer import bytes_of

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


def has_plain_bytes(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor has memory of its own, with its elements in it.

    Sparse, quantized and meta tensors have not, nor have wrappers: those of ``torch.func`` and subclasses that handle
    dispatch themselves (fake and distributed tensors). They are recorded by type and shape, with an empty content id. So are
    tensors whose memory was given back, as FSDP does with weights that it has gathered: reading one would end the process.
    """
    if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH or tensor.layout is not torch.strided:
        return False
    if tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return False
    if _IS_WRAPPED_BY_FUNC is not None and _IS_WRAPPED_BY_FUNC(tensor):
        return False
    return tensor.untyped_storage().nbytes() > 0 or not tensor.numel()


def content_id(tensor: torch.Tensor) -> str:
    """Return the content id, 32 hex digits; ``""`` where there are no plain bytes (see :func:`has_plain_bytes`).

    blake2b-128 over ``float32[3,77]`` and the checksums of the blocks (:mod:`precflow.agent.measure.checksums`).
    Type and shape are part of it, strides and device are not. Two NaNs with other payloads, and ``-0.0`` and ``0.0``, are
    different contents.
    """
    with DisableTorchFunction(), torch.no_grad():  # else a recorder would record the operators that read the tensor
        if not has_plain_bytes(tensor):
            return ""
        return content_id_from(tensor.dtype, tensor.shape, bytes_of(block_checksums(tensor).cpu()))


def content_id_from(dtype: torch.dtype, shape: Tuple[int, ...], checksums: bytes) -> str:
    """Return the content id of a tensor whose checksums are known.

    Args:
        dtype: Its element type.
        shape: Its shape.
        checksums: Of its blocks, as little-endian words.
    """
    return hashlib.blake2b(_head(dtype, shape) + checksums, digest_size=DIGEST_SIZE).hexdigest()


@lru_cache(maxsize=8192)
def _head(dtype: torch.dtype, shape: Tuple[int, ...]) -> bytes:
    return ("%s[%s]" % (dtype_name(dtype), ",".join(map(str, shape)))).encode("ascii")


def add_digest(entries: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return ``entries`` and their ``digest``.

    The digest is blake2b-128 over the sorted lines ``name content``: it does not depend on the order of registration.
    """
    lines = "".join("%s %s\n" % (name, entry["content"]) for name, entry in sorted(entries.items()))
    return {
        "digest": hashlib.blake2b(lines.encode("utf-8", "backslashreplace"), digest_size=DIGEST_SIZE).hexdigest(),
        "entries": entries,
    }

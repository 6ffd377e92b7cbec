"""Roundings that torch has no type for, on CPU tensors."""

from __future__ import annotations

import torch

_FLOAT32_MANTISSA = 23
_INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def keep_bits(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float32 values rounded to ``bits`` explicit mantissa bits, ties to even; NaN and infinity stay.

    10 is TF32, 11 is HF32, 7 is bfloat16. Other types come back as they are.
    """
    drop = _FLOAT32_MANTISSA - bits
    if tensor.dtype != torch.float32 or drop <= 0:
        return tensor
    pattern = tensor.contiguous().view(torch.int32)
    half = (1 << (drop - 1)) - 1
    rounded = (pattern + half + ((pattern >> drop) & 1)) & -(1 << drop)
    return torch.where(torch.isfinite(tensor), rounded.view(torch.float32), tensor)


def step(tensor: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return float values moved by ``distance`` (int64, signed) units in the last place away from 0; 0, NaN, infinity stay."""
    integer = _INTEGER_OF_SIZE[tensor.element_size()]
    moved = (tensor.contiguous().view(integer) + distance.to(integer)).view(tensor.dtype)
    return torch.where(torch.isfinite(tensor) & (tensor != 0), moved, tensor)

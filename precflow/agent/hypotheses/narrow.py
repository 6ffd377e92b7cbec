"""Values of fewer bits, as the operands of a product or what leaves a function may have: all depths that hypotheses try."""

from __future__ import annotations

from typing import Tuple

import torch

from precflow.agent.replay.readings import widen

BITS: Tuple[int, ...] = (11, 10, 7)
"""Explicit bits of the significand that operands are cut to: HF32, TF32, bfloat16."""
TYPES: Tuple[Tuple[str, torch.dtype], ...] = (("bfloat16", torch.bfloat16), ("float16", torch.float16))
"""Types of 16 bits that values are rounded to, by name."""


def round_to(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values of a narrower type as float64: through float32, as a device has them before."""
    return values.float().to(dtype).double()


def cut(values: torch.Tensor, bits: int, *, truncate: bool = False) -> torch.Tensor:
    """Return values in float64 with so many explicit bits of the significand, rounded to nearest or towards zero.

    >>> cut(torch.tensor([1.0625, 3.0]), 3).tolist()
    [1.0, 3.0]
    """
    significand, exponent = torch.frexp(widen(values))
    scaled = torch.ldexp(significand, torch.tensor(bits + 1))
    return torch.ldexp(scaled.trunc() if truncate else scaled.round(), exponent - (bits + 1))

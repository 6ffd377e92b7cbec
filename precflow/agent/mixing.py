"""A fixed hash of integers that every device computes alike: the weights of content ids and the signs of sketches."""

from __future__ import annotations

import torch

_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B


def signed(value: int) -> int:
    """Return the int32 that has the same 32 bits as an unsigned value.

    >>> signed(0xFFFFFFFF), signed(0x7FEB352D)
    (-1, 2146121005)
    """
    return value - (1 << 32) if value >= 1 << 31 else value


def shifted(values: torch.Tensor, places: int) -> torch.Tensor:
    """Return int32 values shifted right with zeros coming in; torch's own shift repeats the sign."""
    return (values >> places) & ((1 << (32 - places)) - 1)


def mix32(values: torch.Tensor) -> torch.Tensor:
    """Return a hash of each int32, one to one, with int32 arithmetic that wraps and nothing else."""
    values = values ^ shifted(values, 16)
    values = values * signed(_FIRST)
    values = values ^ shifted(values, 15)
    values = values * signed(_SECOND)
    return values ^ shifted(values, 16)


def mix32_of(value: int) -> int:
    """Return :func:`mix32` of one number, unsigned, in Python.

    >>> mix32_of(0), hex(mix32_of(1))
    (0, '0x688990c0')
    """
    value &= 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * _FIRST) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * _SECOND) & 0xFFFFFFFF
    return value ^ (value >> 16)

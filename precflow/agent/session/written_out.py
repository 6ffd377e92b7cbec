"""Operators of torch, computed from their definitions instead of by a fused kernel of the device.

Each is computed in float32 or wider and rounded once, so in 16 bits it is at least as exact as a kernel that does the same.
Parameters have torch's names and places. Sources: torch's documentation of each function.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Sequence

import torch

from precflow.agent.replay.compositions import COMPOSITIONS, MaybeTensor, Tensor


def layer_norm(  # noqa: PLR0913, PLR0917  as torch declares it
    input: Tensor,  # noqa: A002  torch's own name
    normalized_shape: Sequence[int],
    weight: MaybeTensor = None,
    bias: MaybeTensor = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001, FBT001, FBT002  torch passes it
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axes."""
    axes = tuple(range(input.dim() - len(tuple(normalized_shape)), input.dim()))
    return _scale_and_shift(_normalize(input, axes, eps), weight, bias)


def group_norm(  # noqa: PLR0913, PLR0917  as torch declares it
    input: Tensor,  # noqa: A002  torch's own name
    num_groups: int,
    weight: MaybeTensor = None,
    bias: MaybeTensor = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,  # noqa: ARG001, FBT001, FBT002  torch passes it
) -> Tensor:
    """The same over the channels of each group and all places behind them."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    places = (1, -1, *([1] * (input.dim() - 2)))
    factor = None if weight is None else weight.reshape(places)
    offset = None if bias is None else bias.reshape(places)
    return _scale_and_shift(_normalize(groups, (2,), eps).reshape(input.shape), factor, offset)


def softmax(input: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:  # noqa: A002
    """``exp(x - max) / sum(exp(x - max))``; rows without a finite value are NaN, as torch has them."""
    values = input if dtype is None else input.to(dtype)
    powers = (values - values.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


def log_softmax(input: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:  # noqa: A002
    """``x - max - log(sum(exp(x - max)))``."""
    values = input if dtype is None else input.to(dtype)
    shifted = values - values.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def gelu(input: Tensor, approximate: str = "none") -> Tensor:  # noqa: A002  torch's own name
    """``x * (1 + erf(x / sqrt(2))) / 2``, or the approximation by tanh where that is asked for.

    Written with ``erfc`` and ``exp``: below -5 the sums with 1 would cancel, even in float64.
    """
    if approximate == "tanh":
        return input / (1 + (-2 * math.sqrt(2 / math.pi) * (input + 0.044715 * input * input * input)).exp())
    return 0.5 * input * torch.erfc(input * -math.sqrt(0.5))


def sigmoid(input: Tensor) -> Tensor:  # noqa: A002  torch's own name
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + (-input).exp())


def silu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002, ARG001, FBT001, FBT002  torch's own names
    """``x / (1 + exp(-x))``."""
    return input / (1 + (-input).exp())


def _normalize(values: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    centred = values - values.mean(tuple(axes), keepdim=True)
    return centred / ((centred * centred).mean(tuple(axes), keepdim=True) + eps).sqrt()


def _scale_and_shift(values: Tensor, weight: MaybeTensor, bias: MaybeTensor) -> Tensor:
    scaled = values if weight is None else values * weight
    return scaled if bias is None else scaled + bias


# Fused operators of torch and torch_npu are written out for the evaluation in float64 already. These are the common ones that
# torch itself evaluates in float64, but that a device has its own kernel for.
DEFINITIONS: Dict[str, Callable[..., Any]] = {
    **COMPOSITIONS,
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "gelu": gelu,
    "sigmoid": sigmoid,
    "silu": silu,
}

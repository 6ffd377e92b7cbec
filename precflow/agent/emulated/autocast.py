"""Autocast on the emulated device: which operators run in the low type, in float32, or in the widest type of their inputs.

torch has no such list for a device that it does not know; these follow the list that it documents for CUDA.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from precflow.agent.emulated import private
from precflow.agent.emulated.relabel import DEVICE_TYPE, is_emulated

_KEY = "AutocastPrivateUse1"
_own_key = private.DispatchKeySet(private.DispatchKey.AutocastPrivateUse1)
_CASTABLE = (torch.float16, torch.bfloat16, torch.float32)  # float64 is never cast, as in torch's own autocast

LOW = (
    "mm bmm addmm addmv mv addbmm baddbmm matmul linear conv1d conv2d conv3d convolution conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input einsum scaled_dot_product_attention prelu chain_matmul linalg_multi_dot"
).split()
FLOAT32 = (
    "softmax.int log_softmax.int layer_norm group_norm norm.Scalar exp expm1 log log2 log10 log1p pow.Tensor_Scalar "
    "pow.Tensor_Tensor rsqrt sum sum.dim_IntList cumsum cumprod prod mse_loss nll_loss cross_entropy_loss "
    "cosine_similarity reciprocal softplus "
    "l1_loss smooth_l1_loss kl_div poisson_nll_loss acos asin cosh tan sinh erfinv"
).split()
WIDEST = "addcdiv addcmul atan2 bilinear cross dot cat stack index_put scatter_add".split()

Choice = Callable[[Sequence[Any]], Optional[torch.dtype]]


def install(library: Any) -> None:
    """Register the casting kernels in ``library``, a ``torch.library.Library("aten", "IMPL")``."""
    # The low type is asked for at each call, because the user names it in each `with torch.autocast("npu", dtype=...)`.
    choices: Sequence[Tuple[List[str], Choice]] = (
        (LOW, lambda _arguments: torch.get_autocast_dtype(DEVICE_TYPE)),
        (FLOAT32, lambda _arguments: torch.float32),
        (WIDEST, _choose_widest),
    )
    for names, choose in choices:
        for name in names:
            packet, _, overload = name.partition(".")
            if hasattr(torch.ops.aten, packet):
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(name, _kernel(operator, choose), _KEY)


def _kernel(operator: Any, choose: Choice) -> Callable[..., Any]:
    def casting(*arguments: Any, **named: Any) -> Any:
        """Cast the arguments as autocast would, and run the operator."""
        # Without this, the operator below would be dispatched to this very function again, without end.
        with private.ExcludeDispatchKeys(_own_key):
            dtype = choose(arguments)
            if dtype is None:
                return operator(*arguments, **named)
            return operator(*_cast(arguments, dtype), **{name: _cast(value, dtype) for name, value in named.items()})

    return casting


def _choose_widest(arguments: Sequence[Any]) -> Optional[torch.dtype]:
    return torch.float32 if any(tensor.dtype == torch.float32 for tensor in _floats(arguments)) else None


def _floats(values: Sequence[Any]) -> List[torch.Tensor]:
    tensors: List[torch.Tensor] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            tensors += _floats(value)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            tensors.append(value)
    return tensors


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if is_emulated(value) and value.dtype in _CASTABLE else value
    if isinstance(value, (list, tuple)):
        return type(value)([_cast(item, dtype) for item in value])
    return value

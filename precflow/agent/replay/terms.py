"""Sums of absolute terms of operators that add up inside: what their error is measured by where the result cancels.

The gradient of a LayerNorm's bias is a sum over all tokens; where it cancels to a thousandth of its terms, a correct chip is
off by a thousand times its rounding. Operators that are nothing but sums need no entry here: they are run on absolute values.
Parameters are those of the operator; each function returns the sums in the order of its outputs.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

from precflow.agent.replay.compositions import MaybeTensor, Tensor


def _of_normalized(gradient: Tensor, normalized: Tensor, inverse: Tensor, weight: MaybeTensor, axes: Sequence[int]) -> Tensor:
    """Return the terms of the gradient of a normalization's input.

    That is ``inverse * (g - mean(g) - x * mean(g x))``; ``x`` is the normalized input, ``g`` the gradient times the weight.
    """
    size = gradient.abs() if weight is None else gradient.abs() * weight.abs()
    near = normalized.abs()
    mean, slope = (values.mean(tuple(axes), keepdim=True) for values in (size, size * near))
    return inverse * (size + mean + near * slope)


def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: MaybeTensor = None,
    bias: MaybeTensor = None,
    output_mask: Sequence[bool] = (),
) -> Tuple[Tensor, Tensor, Tensor]:
    axes = range(-len(normalized_shape), 0)
    normalized = (input - mean) * rstd
    rows = grad_out.abs().reshape(-1, *normalized_shape)
    of_weight = (rows * normalized.abs().reshape(rows.shape)).sum(0)
    return _of_normalized(grad_out, normalized, rstd, weight, list(axes)), of_weight, rows.sum(0)


def _group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: MaybeTensor,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool] = (),
) -> Tuple[Tensor, Tensor, Tensor]:
    shape = (N, group, C // group, HxW)
    gradient, inverse = grad_out.reshape(shape), rstd.reshape(N, group, 1, 1)
    normalized = (input.reshape(shape) - mean.reshape(N, group, 1, 1)) * inverse
    scaled = None if weight is None else weight.reshape(1, group, C // group, 1)
    of_input = _of_normalized(gradient, normalized, inverse, scaled, (-2, -1)).reshape(input.shape)
    size = gradient.abs()
    return of_input, (size * normalized.abs()).sum((0, 3)).reshape(C), size.sum((0, 3)).reshape(C)


def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: MaybeTensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    save_mean: MaybeTensor,
    save_invstd: MaybeTensor,
    train: bool,
    eps: float,
    output_mask: Sequence[bool] = (),
) -> Tuple[Tensor, Tensor, Tensor]:
    shape = [1, -1] + [1] * (input.dim() - 2)
    axes: List[int] = [axis for axis in range(input.dim()) if axis != 1]
    if train or running_mean is None or running_var is None:
        if save_mean is None or save_invstd is None:
            raise TypeError("the statistics of the batch are missing")
        mean, inverse = save_mean.reshape(shape), save_invstd.reshape(shape)
    else:
        mean, inverse = running_mean.reshape(shape), (running_var + eps).rsqrt().reshape(shape)
    normalized, size = (input - mean) * inverse, grad_out.abs()
    scaled = None if weight is None else weight.reshape(shape)
    of_input = _of_normalized(grad_out, normalized, inverse, scaled, axes)
    if not train:
        of_input = size * inverse if scaled is None else size * inverse * scaled.abs()
    return of_input, (size * normalized.abs()).sum(axes), size.sum(axes)


def _softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any = None) -> Tensor:
    size = grad_output.abs()
    return output * (size + (output * size).sum(dim, keepdim=True))


def _log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any = None) -> Tensor:
    size = grad_output.abs()
    return size + output.exp() * size.sum(dim, keepdim=True)


TERMS: Dict[str, Callable[..., Any]] = {
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm_backward": _batch_norm_backward,
    "softmax_backward_data": _softmax_backward,
    "log_softmax_backward_data": _log_softmax_backward,
}

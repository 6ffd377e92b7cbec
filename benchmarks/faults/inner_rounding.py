"""Chips that round once or twice more inside of a norm, a softmax or an activation, to the 16-bit type of the result.

Statistics of norms and sums over many elements stay in float32, as they do on every chip that the bench knows of. In float32
such a chip computes as this CPU does, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

Tensor = torch.Tensor
Round = Callable[[Tensor], Tensor]
_aten = torch.ops.aten


def _rounders(count: int, dtype: torch.dtype) -> tuple[Round, Round]:
    """Return what is done with two values on the way to a result: with ``count`` 1 the second is rounded, with 2 both are."""

    def rounded(value: Tensor) -> Tensor:
        return value.to(dtype).float()

    return (rounded if count > 1 else _keep), rounded


def _keep(value: Tensor) -> Tensor:
    return value


# Functions of one element: what is computed of x, with what is rounded first and second.


def _gelu(x: Tensor, first: Round, second: Round) -> Tensor:
    return 0.5 * x * second(1 + first((x * 0.5**0.5).erf()))


def _gelu_by_tanh(x: Tensor, first: Round, second: Round) -> Tensor:
    return 0.5 * x * second(1 + first((0.7978845608028654 * (x + 0.044715 * x**3)).tanh()))


def _silu(x: Tensor, first: Round, second: Round) -> Tensor:
    return x * second(1 / (1 + first((-x).exp())))


def _sigmoid(x: Tensor, first: Round, second: Round) -> Tensor:
    return 1 / second(1 + first((-x).exp()))


def _tanh(x: Tensor, first: Round, second: Round) -> Tensor:
    powers = first((-2 * x.abs()).exp())
    return torch.copysign((1 - powers) / second(1 + powers), x)


def _softplus(x: Tensor, first: Round, second: Round) -> Tensor:
    return torch.where(x > 20, x, second(1 + first(x.clamp(max=20).exp())).log())


def _log_sigmoid(x: Tensor, first: Round, second: Round) -> Tensor:
    return x.clamp(max=0) - second(1 + first((-x.abs()).exp())).log()


def _mish(x: Tensor, first: Round, second: Round) -> Tensor:
    return x * second(first(torch.nn.functional.softplus(x)).tanh())


def _elu(x: Tensor, first: Round, second: Round) -> Tensor:
    return torch.where(x > 0, x, first(second(x.clamp(max=0).exp()) - 1))


def _hardswish(x: Tensor, first: Round, second: Round) -> Tensor:
    return second(x * first(x + 3).clamp(0, 6)) / 6


_FORWARD = {
    "silu": _silu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "softplus": _softplus,
    "mish": _mish,
    "elu": _elu,
    "hardswish": _hardswish,
}
_LEAST = {torch.float16: 16.0, torch.bfloat16: 88.0, torch.float32: 88.0}  # beyond it exp(-x) overflows


def _of_one(compute: Callable[[Tensor, Round, Round], Tensor], count: int, func: Any, given: Tensor, *rest: Any) -> Tensor:
    if given.dtype == torch.float32 or any(value not in {1, 20} for value in rest) or _overflows(given):
        return func(given, *rest)
    return compute(given.float(), *_rounders(count, given.dtype)).to(given.dtype)


def _overflows(given: Tensor) -> bool:
    """Tell whether an exponential of these values may overflow in their own type, which no correct chip lets happen."""
    return bool(given.numel()) and float(given.abs().max()) * 2 > _LEAST[given.dtype]


def _gelu_of(count: int, func: Any, given: Tensor, *, approximate: str = "none") -> Tensor:
    if given.dtype == torch.float32:
        return func(given, approximate=approximate)
    compute = _gelu if approximate == "none" else _gelu_by_tanh
    return compute(given.float(), *_rounders(count, given.dtype)).to(given.dtype)


def _log_sigmoid_of(count: int, func: Any, given: Tensor) -> Any:
    if given.dtype == torch.float32:
        return func(given)
    return _log_sigmoid(given.float(), *_rounders(count, given.dtype)).to(given.dtype), func(given)[1]


def _change_slope(func: Any, gradient: Tensor, kept: Tensor, *rest: Any, **named: Any) -> Tensor:
    """Return the backward of a function of one element that rounds its slope, which is the gradient of ones."""
    if kept.dtype == torch.float32:
        return func(gradient, kept, *rest, **named)
    slope = func(torch.ones_like(gradient, dtype=torch.float32), kept.float(), *rest, **named).to(kept.dtype)
    return (gradient.float() * slope.float()).to(gradient.dtype)


# Softmax and norms.


def _softmax(count: int, _: Any, given: Tensor, dim: int, half_to_float: bool) -> Tensor:  # noqa: FBT001  the schema of the operator
    first, second = _rounders(count, given.dtype)
    wide = given.float()
    powers = second((first(wide - wide.amax(dim, keepdim=True))).exp())
    made = powers / powers.sum(dim, keepdim=True)
    return made if half_to_float else made.to(given.dtype)


def _log_softmax(count: int, _: Any, given: Tensor, dim: int, half_to_float: bool) -> Tensor:  # noqa: FBT001  the same
    first, second = _rounders(count, given.dtype)
    wide = given.float()
    top = wide.amax(dim, keepdim=True)
    made = wide - second(first((wide - top).exp().sum(dim, keepdim=True)).log() + top)
    return made if half_to_float else made.to(given.dtype)


def _softmax_backward(  # noqa: PLR0913, PLR0917  the operator's own
    count: int, func: Any, gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype
) -> Tensor:
    if gradient.dtype == torch.float32 or dtype != gradient.dtype:
        return func(gradient, output, dim, dtype)
    first, second = _rounders(count, gradient.dtype)
    product = second(gradient.float() * output.float())
    return (product - first(output.float() * product.sum(dim, keepdim=True))).to(gradient.dtype)


def _layer_norm(  # noqa: PLR0913, PLR0917  the operator's own
    count: int, _: Any, given: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    dims = tuple(range(-len(shape), 0))
    wide = given.float()
    mean, rstd = wide.mean(dims, keepdim=True), (wide.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    kept = given.dtype if weight is None or weight.dtype == given.dtype else torch.float32
    made = _scaled((wide - mean) * rstd, weight, bias, _rounders(count, given.dtype))
    return made.to(given.dtype), mean.to(kept), rstd.to(kept)


def _layer_norm_backward(count: int, func: Any, gradient: Tensor, given: Tensor, shape: Sequence[int], *rest: Any) -> Any:
    mean, rstd, weight, _, wanted = rest
    if weight is None or not all(wanted) or given.dtype == torch.float32:
        return func(gradient, given, shape, *rest)
    first, second = _rounders(count, given.dtype)
    dims = tuple(range(-len(shape), 0))
    normalized = second((given.float() - mean.float()) * rstd.float())
    wide = gradient.float()
    scaled = first(wide * weight.float())
    mixed = scaled - scaled.mean(dims, keepdim=True) - normalized * (scaled * normalized).mean(dims, keepdim=True)
    rows = tuple(range(given.dim() - len(shape)))
    made = (mixed * rstd.float(), (wide * normalized).sum(rows), wide.sum(rows))
    return tuple(one.to(like.dtype) for one, like in zip(made, (given, weight, weight), strict=True))


def _scaled(normalized: Tensor, weight: Tensor | None, bias: Tensor | None, rounders: tuple[Round, Round]) -> Tensor:
    first, second = rounders
    made = second(normalized)
    made = made if weight is None else first(made * weight.float())
    return made if bias is None else made + bias.float()


def _of_channels(values: Tensor | None, dims: int) -> Tensor | None:
    return None if values is None else values.reshape(1, -1, *(1,) * (dims - 2))


def _group_norm(count: int, _: Any, given: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Any:
    samples, _, _, groups, eps = rest
    wide = given.float().reshape(samples, groups, -1)
    mean, rstd = wide.mean(-1), (wide.var(-1, correction=0) + eps).rsqrt()
    normalized = ((wide - mean[..., None]) * rstd[..., None]).reshape(given.shape)
    scale, shift = (_of_channels(values, given.dim()) for values in (weight, bias))
    made = _scaled(normalized, scale, shift, _rounders(count, given.dtype))
    return made.to(given.dtype), mean.to(given.dtype), rstd.to(given.dtype)


def _batch_norm(count: int, func: Any, given: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Any:
    plain = func(given, weight, bias, *rest)
    running, spread, training, _, eps = rest
    wide = given.float()
    if training:
        dims = (0, *range(2, given.dim()))
        mean, variance = wide.mean(dims), wide.var(dims, correction=0)
    else:
        mean, variance = running.float(), spread.float()
    centre, scale = (_of_channels(values, given.dim()) for values in (mean, (variance + eps).rsqrt()))
    weights, shift = (_of_channels(values, given.dim()) for values in (weight, bias))
    made = _scaled((wide - centre) * scale, weights, shift, _rounders(count, given.dtype))
    return made.to(given.dtype), *plain[1:]


def round_inside(count: int, _: torch.Generator) -> dict[Any, Callable[..., Any]]:
    """Return norms, softmax and activations, forward and backward, that round ``count`` times more inside."""
    slopes = ("gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "mish_backward", "hardswish_backward")
    return {
        **{getattr(_aten, name): partial(_of_one, compute, count) for name, compute in _FORWARD.items()},
        **{getattr(_aten, name): _change_slope for name in slopes},
        _aten.gelu: partial(_gelu_of, count),
        _aten.log_sigmoid_forward: partial(_log_sigmoid_of, count),
        _aten._softmax: partial(_softmax, count),  # noqa: SLF001  aten's own name
        _aten._log_softmax: partial(_log_softmax, count),  # noqa: SLF001  the same
        _aten._softmax_backward_data: partial(_softmax_backward, count),  # noqa: SLF001  the same
        _aten.native_layer_norm: partial(_layer_norm, count),
        _aten.native_layer_norm_backward: partial(_layer_norm_backward, count),
        _aten.native_group_norm: partial(_group_norm, count),
        _aten.native_batch_norm: partial(_batch_norm, count),
    }

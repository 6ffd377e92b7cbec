"""Other chips: correct ways to compute the same operators, which round differently from this CPU.

A chip replaces aten operators below everything that records, in forward and backward alike. None of them is one of the noise
floor's own perturbations (a random step of one ulp at every output, other chunk counts, one-ulp weights), so a chip tests the
floor and does not repeat it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # the one public mode at this level lives in a private module

Tensor = torch.Tensor
Operator = Callable[..., Any]
Product = Callable[[Tensor, Tensor], Tensor]  # of two matrices or batches of them, in float32, not rounded to 16 bits yet
_aten = torch.ops.aten
_INTEGERS = {2: torch.int16, 4: torch.int32}
_FLOAT = frozenset({torch.float32, torch.float16, torch.bfloat16})


class Chip(TorchDispatchMode):
    """Runs operators as another chip would.

    Args:
        parts: Names of ``PARTS``; where two replace the same operator, the later one does.
        seed: Seeds the parts that draw random numbers.
    """

    def __init__(self, parts: Sequence[str], seed: int = 0) -> None:
        super().__init__()
        self._operators: dict[Any, Operator] = {}
        self._paused = False
        for name in parts:
            self._operators.update(PARTS[name](torch.Generator().manual_seed(seed)))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let this CPU compute as it does, such as while the size of a fault is measured."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def unseen(self) -> contextlib.AbstractContextManager[None]:
        """Hide what the bench itself computes from a peer that watches all of torch; precflow needs no such thing."""
        return contextlib.nullcontext()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        replacement = None if self._paused else self._operators.get(func.overloadpacket)
        if replacement is None or not _is_float(args):
            return func(*args, **(kwargs or {}))
        return replacement(func, *args, **(kwargs or {}))


def _is_float(args: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.dtype in _FLOAT for value in args)


# Products of matrices: how K is cut, and how partial sums are rounded.


def _in_chunks(count: int, left: Tensor, right: Tensor, *, reverse: bool = False) -> Tensor:
    """Cut K into ``count`` parts and add their float32 products, the last one first if ``reverse``."""
    parts = list(zip(left.tensor_split(count, -1), right.tensor_split(count, -2), strict=True))
    products = [one.float() @ other.float() for one, other in (reversed(parts) if reverse else parts) if one.shape[-1]]
    return sum(products[1:], products[0])


def _in_blocks(size: int, left: Tensor, right: Tensor) -> Tensor:
    """Add blocks of ``size`` terms one after the other to one float32 accumulator, as a matrix unit does."""
    return _in_chunks(-(-left.shape[-1] // size), left, right)


def _truncating(left: Tensor, right: Tensor) -> Tensor:
    """Add blocks of 16 terms to an accumulator that is rounded towards zero each time."""
    count = -(-left.shape[-1] // 16)
    total: Tensor | None = None
    for one, other in zip(left.tensor_split(count, -1), right.tensor_split(count, -2), strict=True):
        exact = one.double() @ other.double()
        total = toward_zero(exact if total is None else total.double() + exact)
    assert total is not None
    return total


def toward_zero(exact: Tensor) -> Tensor:
    """Round float64 to float32 towards zero."""
    rounded = exact.float()
    too_far = rounded.double().abs() > exact.abs()
    return torch.where(too_far, (rounded.view(torch.int32) - 1).view(torch.float32), rounded)


def _split_in_bfloat16(left: Tensor, right: Tensor) -> Tensor:
    """Cut K into four parts whose products are rounded to the element type before they are added (split-K)."""
    parts = zip(left.tensor_split(4, -1), right.tensor_split(4, -2), strict=True)
    products = [(one.float() @ other.float()).to(left.dtype).float() for one, other in parts]
    return sum(products[1:], products[0])


def _matrix_operators(product: Product) -> dict[Any, Operator]:
    """Return the operators that multiply matrices, all by one way of adding up products."""

    def multiply(left: Tensor, right: Tensor) -> Tensor:
        """Multiply; nothing to add up, as for an expert without tokens, makes zeros."""
        return product(left, right) if left.shape[-1] else left.float() @ right.float()

    def mm(_: Any, left: Tensor, right: Tensor) -> Tensor:
        return multiply(left, right).to(left.dtype)

    def addmm(_: Any, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        made = alpha * multiply(left, right)
        return (made + beta * bias.float() if beta else made).to(left.dtype)  # with beta 0 the bias may be unwritten memory

    def convolution(func: Any, given: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        stride, padding, dilation, transposed, _, groups = rest
        if transposed or groups != 1 or weight.dim() != 4:
            return func(given, weight, bias, *rest)
        columns = torch.nn.functional.unfold(given.float(), weight.shape[2:], dilation, padding, stride)
        made = product(weight.flatten(1).float().expand(len(given), -1, -1), columns)
        made = made if bias is None else made + bias.float()[:, None]
        sizes = func(given[:1], weight, bias, *rest).shape[2:]
        return made.reshape(len(given), len(weight), *sizes).to(given.dtype)

    return {_aten.mm: mm, _aten.bmm: mm, _aten.addmm: addmm, _aten.baddbmm: addmm, _aten.convolution: convolution}


# Functions of single elements, and the two composites around them.


def step(value: Tensor, steps: Tensor) -> Tensor:
    """Move each element by whole units in the last place, away from zero where ``steps`` is positive."""
    integer = _INTEGERS[value.element_size()]
    bits = value.contiguous().view(integer)
    magnitude = bits & torch.iinfo(integer).max
    safe = (magnitude > 8) & torch.isfinite(value)
    return torch.where(safe, bits + steps.to(integer), bits).view(value.dtype)


def _wobble(value: Tensor, argument: Tensor, distance: int) -> Tensor:
    """Move results by up to ``distance`` ulp, the same way for the same argument: as an approximation of the function does."""
    bits = argument.detach().float().contiguous().view(torch.int32).expand_as(value).long()
    mixed = (bits * 0x9E3779B1 >> 15) & 0xFFFF
    return step(value, mixed % (2 * distance + 1) - distance)


_ELEMENTWISE = (
    *(_aten.exp, _aten.gelu, _aten.silu, _aten.sigmoid, _aten.tanh, _aten.rsqrt, _aten.sqrt, _aten.sin, _aten.cos, _aten.log),
    *(_aten.erf, _aten.softplus, _aten.mish, _aten.reciprocal, _aten.exp2, _aten.hardswish),
)


def _coarse_functions(distance: int, _: torch.Generator) -> dict[Any, Operator]:
    """Return functions of one element that are wrong by up to ``distance`` ulp of their own type, even if it has 16 bits."""

    def elementwise(func: Any, given: Tensor, *rest: Any, **named: Any) -> Tensor:
        return _wobble(func(given.double(), *rest, **named).to(given.dtype), given, distance)

    return dict.fromkeys(_ELEMENTWISE, elementwise)


def _vector_functions(distance: int, _: torch.Generator) -> dict[Any, Operator]:
    """Return functions of one element that are wrong by up to ``distance`` ulp of float32, alone and inside softmax and norms.

    In 16 bits they round once more, as a chip does whose vector unit computes in float32.
    """

    def elementwise(func: Any, given: Tensor, *rest: Any, **named: Any) -> Tensor:
        return _wobble(func(given.double(), *rest, **named).float(), given, distance).to(given.dtype)

    def softmax(_: Any, given: Tensor, dim: int, half_to_float: bool) -> Tensor:  # noqa: FBT001  the schema of the operator
        shifted = given.float() - given.float().amax(dim, keepdim=True)
        powers = _wobble(shifted.double().exp().float(), shifted, distance)
        made = powers / powers.sum(dim, keepdim=True)
        return made if half_to_float else made.to(given.dtype)

    def log_softmax(_: Any, given: Tensor, dim: int, half_to_float: bool) -> Tensor:  # noqa: FBT001  the same
        shifted = given.float() - given.float().amax(dim, keepdim=True)
        powers = _wobble(shifted.double().exp().float(), shifted, distance)
        made = shifted - powers.sum(dim, keepdim=True).log()
        return made if half_to_float else made.to(given.dtype)

    def layer_norm(_: Any, given: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> Any:
        wide = given.float()
        dims = tuple(range(-len(shape), 0))
        variance = wide.var(dims, correction=0, keepdim=True) + eps
        return _normalized(given, weight, bias, wide.mean(dims, keepdim=True), _wobble(variance.rsqrt(), variance, distance))

    own = {_aten._softmax: softmax, _aten._log_softmax: log_softmax, _aten.native_layer_norm: layer_norm}  # noqa: SLF001
    return {**dict.fromkeys(_ELEMENTWISE, elementwise), **own}


def _normalized(given: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor) -> Any:
    """Return what ``native_layer_norm`` does: the normalized tensor, and what its backward needs."""
    made = (given.float() - mean) * rstd
    made = made if weight is None else made * weight.float()
    made = made if bias is None else made + bias.float()
    kept = given.dtype if weight is None or weight.dtype == given.dtype else torch.float32
    return made.to(given.dtype), mean.to(kept), rstd.to(kept)


def _one_pass_norms(_: torch.Generator) -> dict[Any, Operator]:
    """Return norms whose variance is the mean of squares less the square of the mean, in one pass over float32."""

    def layer_norm(_: Any, given: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> Any:
        dims = tuple(range(-len(shape), 0))
        mean, square = given.float().mean(dims, keepdim=True), given.float().square().mean(dims, keepdim=True)
        return _normalized(given, weight, bias, mean, ((square - mean * mean).clamp(min=0) + eps).rsqrt())

    def group_norm(_: Any, given: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
        count, channels, _, groups, eps = rest
        wide = given.float().reshape(count, groups, -1)
        mean = wide.mean(-1)
        rstd = ((wide.square().mean(-1) - mean * mean).clamp(min=0) + eps).rsqrt()
        made = ((wide - mean[..., None]) * rstd[..., None]).reshape(given.shape)
        sizes = (1, channels, *(1,) * (given.dim() - 2))
        made = made if weight is None else made * weight.float().view(sizes)
        made = made if bias is None else made + bias.float().view(sizes)
        return made.to(given.dtype), mean.to(given.dtype), rstd.to(given.dtype)

    return {_aten.native_layer_norm: layer_norm, _aten.native_group_norm: group_norm}


# Everything in float64, then rounded once: to nearest, or up or down by chance.

_COMPUTING = (
    *(_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.convolution, _aten._softmax, _aten._log_softmax),  # noqa: SLF001
    *(_aten.native_layer_norm, _aten.native_group_norm, _aten.add, _aten.sub, _aten.mul, _aten.div, _aten.sum, _aten.mean),
    *(_aten.pow, _aten.gelu_backward, _aten.silu_backward, _aten.tanh_backward, _aten.sigmoid_backward),
    *(_aten._softmax_backward_data, _aten._log_softmax_backward_data, _aten.native_layer_norm_backward),  # noqa: SLF001
    *_ELEMENTWISE,
)
_LOSSY = frozenset({torch.float32, torch.float16, torch.bfloat16})


def _in_double(rounding: Callable[[Tensor, torch.dtype], Tensor], _: torch.Generator) -> dict[Any, Operator]:
    def doubled(func: Any, *args: Any, **named: Any) -> Any:
        """Run an operator in float64; the element types of the results are those that it has by itself."""
        plain = func(*args, **named)
        wide = [value.double() if isinstance(value, Tensor) and value.dtype in _LOSSY else value for value in args]
        wide = [torch.float64 if value in _FLOAT else value for value in wide] if func.overloadpacket in _TYPED else wide
        named = {name: torch.float64 if value in _FLOAT else value for name, value in named.items() if not _is_tensor(value)}
        exact = func(*wide, **named)
        if isinstance(plain, Tensor):
            return _rounded(rounding, exact, plain)
        return tuple(_rounded(rounding, one, other) for one, other in zip(exact, plain, strict=True))

    return dict.fromkeys(_COMPUTING, doubled)


_TYPED = frozenset({_aten._softmax_backward_data, _aten._log_softmax_backward_data})  # noqa: SLF001  name an element type


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _rounded(rounding: Callable[[Tensor, torch.dtype], Tensor], exact: Any, plain: Any) -> Any:
    """Round one result as it comes from the operator itself, which may have left a result out."""
    if not _is_tensor(plain) or plain.dtype not in _LOSSY or exact.dtype != torch.float64:
        return plain
    made = rounding(exact, plain.dtype)
    return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype).copy_(made)


def _to_nearest(exact: Tensor, dtype: torch.dtype) -> Tensor:
    return exact.to(dtype)


def _by_chance(generator: torch.Generator, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Round up or down with the probability that keeps the mean (stochastic rounding)."""
    near = exact.to(dtype)
    further = torch.where(exact.abs() > near.double().abs(), 1, -1)
    other = step(near, further)
    gap = (other.double() - near.double()).abs().clamp(min=1e-300)
    chance = torch.rand(exact.shape, generator=generator, dtype=torch.float64)
    return torch.where(chance < (exact - near.double()).abs() / gap, other, near)


def _stochastic(generator: torch.Generator) -> dict[Any, Operator]:
    return _in_double(partial(_by_chance, generator), generator)


def _sums_in_strands(_: torch.Generator) -> dict[Any, Operator]:
    """Return sums and means that add seven strands of their first dimension that is summed over."""

    def total(func: Any, given: Tensor, dims: Any = None, *rest: Any, **named: Any) -> Tensor:
        over = sorted(dim % given.dim() for dim in (dims or range(given.dim()))) if given.dim() else []
        plain = func(given, *(() if dims is None else (dims,)), *rest, **named)
        if not over or given.shape[over[-1]] < 14 or given.dtype not in _LOSSY or not given.numel():
            return plain
        parts = [part.float().sum(over, keepdim=True) for part in given.tensor_split(7, over[-1])]
        made = sum(parts[1:], parts[0])
        count = given.numel() // made.numel()
        made = made / count if func.overloadpacket is _aten.mean else made
        return made.reshape(plain.shape).to(plain.dtype)

    return {_aten.sum: total, _aten.mean: total}


def _unfused(_: torch.Generator) -> dict[Any, Operator]:
    """Return a linear layer that rounds its product before the bias is added, and a softmax by blocks that rescales."""

    def addmm(_: Any, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        return beta * bias + alpha * (left @ right) if beta else alpha * (left @ right)

    def softmax(_: Any, given: Tensor, dim: int, half_to_float: bool) -> Tensor:  # noqa: FBT001  the schema of the operator
        largest, total = None, None
        for part in given.float().split(16, dim):
            top = part.amax(dim, keepdim=True)
            new = top if largest is None else torch.maximum(largest, top)
            here = (part - new).exp().sum(dim, keepdim=True)
            total = here if total is None else total * (largest - new).exp() + here
            largest = new
        made = (given.float() - largest).exp() / total
        return made if half_to_float else made.to(given.dtype)

    return {_aten.addmm: addmm, _aten._softmax: softmax}  # noqa: SLF001


def _product(product: Product, _: torch.Generator) -> dict[Any, Operator]:
    return _matrix_operators(product)


PARTS: dict[str, Callable[[torch.Generator], dict[Any, Operator]]] = {
    "chunk2": partial(_product, partial(_in_chunks, 2)),
    "chunk8r": partial(_product, partial(_in_chunks, 8, reverse=True)),
    "chunk64": partial(_product, partial(_in_chunks, 64)),
    "k16": partial(_product, partial(_in_blocks, 16)),
    "k16_trunc": partial(_product, _truncating),
    "split_k": partial(_product, _split_in_bfloat16),
    "vec1": partial(_vector_functions, 1),
    "vec2": partial(_vector_functions, 2),
    "coarse1": partial(_coarse_functions, 1),
    "coarse2": partial(_coarse_functions, 2),
    "one_pass": _one_pass_norms,
    "float64": partial(_in_double, _to_nearest),
    "stochastic": _stochastic,
    "strands": _sums_in_strands,
    "unfused": _unfused,
}
BACKGROUNDS = (  # what a fault stands on top of; the others are controls alone
    *(("chunk2", "vec1"), ("chunk8r", "vec2"), ("chunk64", "one_pass"), ("k16", "vec1"), ("k16", "strands"), ("float64",)),
    *(("chunk8r", "vec1", "one_pass"), ("chunk2", "unfused", "vec2"), ("chunk64", "vec1", "strands")),
)

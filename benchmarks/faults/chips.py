"""Other chips: correct ways to compute the same operators, which round differently from this CPU.

A chip replaces aten operators below everything that records, in forward and backward alike. None of them is one of the noise
floor's own perturbations (a random step of one ulp at every output, other chunk counts, one-ulp weights), so a chip tests the
floor and does not repeat it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # the one public mode at this level lives in a private module

from .inner_rounding import round_inside

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
        count, _, _, groups, eps = rest
        wide = given.float().reshape(count, groups, -1)
        mean = wide.mean(-1)
        rstd = ((wide.square().mean(-1) - mean * mean).clamp(min=0) + eps).rsqrt()
        return _grouped(given, weight, bias, mean, rstd, groups)

    return {_aten.native_layer_norm: layer_norm, _aten.native_group_norm: group_norm}


def _grouped(  # noqa: PLR0913, PLR0917  what a group norm is made of
    given: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, groups: int
) -> Any:
    """Return what ``native_group_norm`` does: the normalized tensor, and what its backward needs."""
    wide = given.float().reshape(len(given), groups, -1)
    made = ((wide - mean[..., None]) * rstd[..., None]).reshape(given.shape)
    sizes = (1, -1, *(1,) * (given.dim() - 2))
    made = made if weight is None else made * weight.float().view(sizes)
    made = made if bias is None else made + bias.float().view(sizes)
    return made.to(given.dtype), mean.to(given.dtype), rstd.to(given.dtype)


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


def _split_sums(_: torch.Generator) -> dict[Any, Operator]:
    """Return sums of 16-bit types in four parts of the first dimension, each of which is rounded before they are added."""

    def total(func: Any, given: Tensor, dims: Any = None, *rest: Any, **named: Any) -> Tensor:
        plain = func(given, *(() if dims is None else (dims,)), *rest, **named)
        over = sorted(dim % given.dim() for dim in (dims or range(given.dim()))) if given.dim() else []
        if not over or plain.dtype != given.dtype or given.element_size() != 2 or not given.numel():
            return plain
        parts = [part.float().sum(over).to(given.dtype).float() for part in given.tensor_split(4, over[0])]
        return sum(parts[1:], parts[0]).reshape(plain.shape).to(plain.dtype)

    return {_aten.sum: total}


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


# Other algorithms that libraries choose between.


def _convolution_by(convolve: Callable[[Tensor, Tensor], Tensor], sizes: Sequence[int] | None) -> dict[Any, Operator]:
    """Return convolutions with stride 1, in float32 and rounded once.

    Args:
        convolve: Convolves images with kernels, without padding.
        sizes: Of kernels, where only these are convolved so; ``None`` for all.
    """

    def convolution(func: Any, given: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        stride, padding, dilation, transposed, _, groups = rest
        plain = weight.dim() == 4 and groups == 1 and not transposed and set(stride) == set(dilation) == {1}
        if not plain or (sizes is not None and list(weight.shape[2:]) != list(sizes)):
            return func(given, weight, bias, *rest)
        down, right = (padding * 2)[:2]
        made = convolve(torch.nn.functional.pad(given.float(), (right, right, down, down)), weight.float())
        return (made if bias is None else made + bias.float()[:, None, None]).to(given.dtype)

    return {_aten.convolution: convolution}


def _from_tiles(points: Sequence[float], generator: torch.Generator) -> dict[Any, Operator]:
    """Return convolutions of 3 x 3 by Winograd's method: tiles are transformed by polynomials at these points and at infinity.

    Where the first tile begins is drawn: devices pad differently.
    """
    count = len(points) + 1  # inputs of a tile
    size = count - 2  # its results
    of_kernels, of_values, back = _transforms(points)
    before = torch.randint(size, (2,), generator=generator).tolist()

    def convolve(values: Tensor, kernels: Tensor) -> Tensor:
        rows, columns = values.shape[2] - 2, values.shape[3] - 2
        after = [-(start + length) % size for start, length in zip(before, (rows, columns), strict=True)]
        wide = torch.nn.functional.pad(values, (before[1], after[1], before[0], after[0]))
        tiles = wide.unfold(2, count, size).unfold(3, count, size)
        products = torch.einsum("ocij,nchwij->nohwij", of_kernels @ kernels @ of_kernels.T, of_values @ tiles @ of_values.T)
        made = (back @ products @ back.T).transpose(3, 4).flatten(4, 5).flatten(2, 3)
        return made[:, :, before[0] : before[0] + rows, before[1] : before[1] + columns]

    return _convolution_by(convolve, (3, 3))


def _transforms(points: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrices that evaluate a kernel of 3 and the values of a tile at points, and that take products back."""
    at = torch.tensor(points, dtype=torch.float64)
    count = len(points) + 1

    def evaluate(terms: int) -> Tensor:
        last = torch.zeros(1, terms, dtype=torch.float64)
        last[0, -1] = 1.0  # at infinity the last coefficient counts
        return torch.cat([at[:, None] ** torch.arange(terms), last])

    apart = [math.prod(float(one - other) for other in at if other != one) for one in at]
    scale = torch.tensor([*apart, 1.0], dtype=torch.float64)[:, None]
    whole = torch.linalg.inv(evaluate(count)).T
    return (evaluate(3) / scale).float(), (whole * scale).float(), evaluate(count - 2).T.contiguous().float()


def _by_fourier(_: torch.Generator) -> dict[Any, Operator]:
    """Return convolutions as products of Fourier transforms of whole images."""

    def convolve(values: Tensor, kernels: Tensor) -> Tensor:
        sizes = values.shape[2:]
        spectrum = torch.einsum("nchw,ochw->nohw", torch.fft.rfft2(values), torch.fft.rfft2(kernels, s=sizes).conj_physical())
        rows, columns = (size - kernel + 1 for size, kernel in zip(sizes, kernels.shape[2:], strict=True))
        return torch.fft.irfft2(spectrum, s=sizes)[:, :, :rows, :columns]

    return _convolution_by(convolve, None)


def _sigmoid_by_tanh(_: torch.Generator) -> dict[Any, Operator]:
    """Return a sigmoid made of a tanh, a SiLU made of that, and a tanh made of an exponential, in float32 and rounded once.

    A sigmoid near zero and a tanh near zero are right to a unit in the last place of 1, and not of themselves.
    """

    def sigmoid(given: Tensor) -> Tensor:
        return 0.5 * (given.float() * 0.5).tanh() + 0.5

    made_of = {
        "sigmoid": sigmoid,
        "silu": lambda x: x.float() * sigmoid(x),
        "tanh": lambda x: 1 - 2 / ((2 * x.float()).exp() + 1),
    }
    return {
        **{getattr(_aten, name): _of_one(compute) for name, compute in made_of.items()},
        **{getattr(_aten, f"{name}_"): _of_one(compute, in_place=True) for name, compute in made_of.items()},
    }


def _of_one(compute: Callable[[Tensor], Tensor], *, in_place: bool = False) -> Operator:
    """Return an operator of one tensor that is computed in float32 and rounded once."""

    def operator(_: Any, given: Tensor) -> Tensor:
        made = compute(given).to(given.dtype)
        return given.copy_(made) if in_place else made

    return operator


def _by_reciprocals(_: torch.Generator) -> dict[Any, Operator]:
    """Return quotients that multiply by a reciprocal in float32, in a softmax as well, and ``rsqrt`` as that of a root."""

    def divide(func: Any, left: Any, right: Any, **named: Any) -> Tensor:
        kind = torch.result_type(left, right)
        if named or kind not in _FLOAT:
            return func(left, right, **named)
        left, right = (value.float() if _is_tensor(value) else value for value in (left, right))
        return (left * (torch.ones(()) / right)).to(kind)

    def softmax(_: Any, given: Tensor, dim: int, half_to_float: bool) -> Tensor:  # noqa: FBT001  the schema of the operator
        powers = (given.float() - given.float().amax(dim, keepdim=True)).exp()
        made = powers * (1 / powers.sum(dim, keepdim=True))
        return made if half_to_float else made.to(given.dtype)

    root = _of_one(lambda x: 1 / x.float().sqrt())
    return {_aten.div: divide, _aten._softmax: softmax, _aten.rsqrt: root}  # noqa: SLF001


def _norms_in_pieces(_: torch.Generator) -> dict[Any, Operator]:
    """Return norms whose mean and variance are put together from those of pieces of 24 elements (Chan, Golub and LeVeque)."""

    def measure(wide: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance over the last dimension."""
        pieces = wide.split(24, -1)
        count, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for piece in pieces:
            own, more = piece.mean(-1), piece.shape[-1]
            apart = own - mean
            squares = squares + (piece - own[..., None]).square().sum(-1) + apart.square() * (count * more / (count + more))
            mean = mean + apart * (more / (count + more))
            count += more
        return mean, squares / count

    def layer_norm(_: Any, given: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> Any:
        mean, variance = measure(given.float().flatten(-len(shape)))
        sizes = (*given.shape[: -len(shape)], *(1,) * len(shape))
        return _normalized(given, weight, bias, mean.view(sizes), (variance + eps).rsqrt().view(sizes))

    def group_norm(_: Any, given: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
        count, _, _, groups, eps = rest
        mean, variance = measure(given.float().reshape(count, groups, -1))
        return _grouped(given, weight, bias, mean, (variance + eps).rsqrt(), groups)

    return {_aten.native_layer_norm: layer_norm, _aten.native_group_norm: group_norm}


_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)  # Abramowitz and Stegun, 7.1.26: right to 1.5e-7


def _erf_by_polynomial(_: torch.Generator) -> dict[Any, Operator]:
    """Return a GELU whose error function is the polynomial times an exponential of Abramowitz and Stegun, in float32."""

    def gelu(func: Any, given: Tensor, *, approximate: str = "none") -> Tensor:
        if approximate != "none":
            return func(given, approximate=approximate)
        wide = given.float()
        size = wide.abs() * 0.5**0.5
        inverse, sums = 1 / (1 + 0.3275911 * size), torch.zeros(())
        for factor in _ERF:
            sums = (sums + factor) * inverse
        erf = torch.copysign(1 - sums * (-size * size).exp(), wide)
        return (0.5 * wide * (1 + erf)).to(given.dtype)

    return {_aten.gelu: gelu}


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
    "winograd": partial(_from_tiles, (0, 1, -1, 2, -2)),
    "small_tiles": partial(_from_tiles, (0, 1, -1)),
    "fourier": _by_fourier,
    "sigmoid_by_tanh": _sigmoid_by_tanh,
    "reciprocals": _by_reciprocals,
    "norms_in_pieces": _norms_in_pieces,
    "erf_by_polynomial": _erf_by_polynomial,
    "split_sums": _split_sums,
    "rounds_once_more": partial(round_inside, 1),
    "rounds_twice_more": partial(round_inside, 2),
}
ALTERNATIVES = (
    "split_k",
    "split_sums",
    "sigmoid_by_tanh",
    "erf_by_polynomial",
)  # whose errors in 16 bits no fault has to exceed
BACKGROUNDS = (  # what a fault stands on top of; the others are controls alone
    *(("chunk2", "vec1"), ("chunk8r", "vec2"), ("chunk64", "one_pass"), ("k16", "vec1"), ("k16", "strands"), ("float64",)),
    *(("chunk8r", "vec1", "one_pass"), ("chunk2", "unfused", "vec2"), ("chunk64", "vec1", "strands")),
)

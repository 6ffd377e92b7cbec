"""Faults: what is wrong on the target, where it may stand, and which findings explain it.

Each kind is a small function that computes a call wrongly. Its size, its layer and its operator are drawn from a seed.
``causes`` are the rules that explain the fault; a kind without one is a family that no rule knows, and the right answer is then
"unknown" with the right operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .calls import Call, CallName, canonical
from .effect import MATMULS, map_floats

Tensor = torch.Tensor
FAMILIES = ("environment", "attention", "position", "norm and activation", "loss and backward", "random, data and kernel")
_HALF = frozenset({torch.float16, torch.bfloat16})


class Site(NamedTuple):
    """A call of a host that a fault may replace.

    Attributes:
        name: Which call.
        shape: Shape of its first tensor.
        owner: Class of the module that runs it.
        masks: One of its arguments is an additive mask: zeros and very negative numbers.
        scalar: Its second argument is a plain number.
        grad: Its first tensor needs a gradient.
        halves: It joins two tensors of one shape.
        by_sample: Its mask is not the same for all samples.
        strided: Its second tensor is no contiguous one.
        weighted: It has a weight, as some norms have and some have not.
        own_weight: Its weight is the parameter ``weight`` of the module that runs it, and no slice of another tensor.
    """

    name: CallName
    shape: tuple[int, ...]
    owner: str
    masks: bool
    scalar: bool
    grad: bool
    halves: bool
    by_sample: bool
    strided: bool
    weighted: bool
    own_weight: bool

    @classmethod
    def of(cls, name: CallName, call: Call, owner: torch.nn.Module | None) -> Site:
        """Look at a call."""
        first = call.args[0] if call.args else None
        pair = isinstance(first, (tuple, list)) and len(first) == 2 and all(isinstance(one, Tensor) for one in first)
        tensors = [value for value in (first if pair else call.args) if isinstance(value, Tensor)]
        shape = tuple(tensors[0].shape) if tensors else ()
        scalar = len(call.args) > 1 and isinstance(call.args[1], (int, float))
        grad = bool(tensors) and tensors[0].requires_grad
        halves = pair and first[0].shape == first[1].shape
        masks = [value for value in call.args if is_mask(value)]
        by_sample = bool(masks) and not torch.equal(masks[0], masks[0][:1].expand_as(masks[0]))
        weighted = isinstance(call.given(2, "weight"), Tensor)
        strided = len(tensors) > 1 and not tensors[1].is_contiguous()
        weight = getattr(owner, "weight", None)
        own_weight = weight is not None and call.given(1, "weight") is weight
        return cls(
            name, shape, type(owner).__name__, bool(masks), scalar, grad, halves, by_sample, strided, weighted, own_weight
        )


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: In tables and on the command line.
        family: One of ``FAMILIES``.
        change: Compute the call wrongly (``forward``), or change its gradients (``backward``), what its backward multiplies
            (``operands``), weights, inputs or optimizer.
        where: Whether a call may be wrong in this way.
        of: ``forward``, ``backward``, ``operands``, ``weights``, ``inputs`` or ``optimizer``.
        reach: ``one`` call, all that fit in one ``module``, or all in the ``model``.
        sizes: Smallest and largest size in float32, and the same in 16 bits; empty if the kind has no size.
        causes: Rules that explain it.
        keeps_gradients: A call of the forward that is wrong computes the gradients that the right one would.
    """

    name: str
    family: str
    change: Callable[..., Any]
    where: Callable[[Site], bool]
    of: str = "forward"
    reach: str = "one"
    sizes: tuple[tuple[float, float], tuple[float, float]] | tuple[()] = ()
    causes: tuple[str, ...] = ()
    keeps_gradients: bool = False


OF_BACKWARD = frozenset({"backward", "operands"})
KINDS: dict[str, Kind] = {}
Where = Callable[[Site], bool]


def kind(  # noqa: PLR0913  the fields of a kind, each by its name
    family: str,
    where: Where,
    *causes: str,
    of: str = "forward",
    reach: str = "one",
    sizes: Any = (),
    name: str = "",
    keeps_gradients: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a kind of fault under its own name."""

    def register(change: Callable[..., Any]) -> Callable[..., Any]:
        own = name or change.__name__
        KINDS[own] = Kind(own, family, change, where, of, reach, sizes, causes, keeps_gradients)
        return change

    return register


# Where a fault may stand.


def operators(*names: str, module: str = "", owner: str = "") -> Where:
    """Return a condition: one of these operators, in a module or a class whose name holds this text."""

    def fits(site: Site) -> bool:
        return site.name.operator in names and module in site.name.module and owner in site.owner

    return fits


def _adds_mask(site: Site) -> bool:
    return site.masks and site.name.operator in {"add", "add_"} and len(site.shape) == 4


def _adds_mask_of_samples(site: Site) -> bool:
    return _adds_mask(site) and site.by_sample


def _multiplies_view(site: Site) -> bool:
    return site.strided and site.name.operator in {"matmul", "bmm"}


def _scales(site: Site) -> bool:
    return site.scalar and site.name.operator == "mul" and len(site.shape) == 4


def _adds_residual(site: Site) -> bool:
    whole = any(word in site.owner for word in ("Layer", "Block", "Output")) and "Norm" not in site.owner
    return site.name.operator == "add" and whole and len(site.shape) == 3 and not site.masks


def _norm_of_squares(site: Site) -> bool:
    return "RMSNorm" in site.owner and site.name.operator == "add" and site.scalar


_ATTENDING = ("attn", "attention")


def _moves_heads(site: Site) -> bool:
    inside = any(word in site.name.module for word in _ATTENDING)
    return inside and site.name.operator == "transpose" and len(site.shape) == 4 and site.grad


def _joins_heads(site: Site) -> bool:
    inside = any(word in site.name.module for word in _ATTENDING)
    return inside and site.name.operator == "reshape" and len(site.shape) == 4


def _rotates(site: Site) -> bool:
    inside = any(word in site.name.module for word in _ATTENDING)
    return inside and site.halves and site.name.operator in {"cat", "stack"}


def _multiplies_by_cosine(site: Site) -> bool:
    inside = any(word in site.name.module for word in _ATTENDING)
    return inside and site.name.operator == "mul" and not site.scalar and site.name.ordinal in {0, 2}


_MATMUL = operators(*sorted(MATMULS))
_SOFTMAX = operators("softmax")
_COMPUTES = operators(*"linear matmul bmm conv2d layer_norm group_norm softmax gelu silu sigmoid tanh rsqrt baddbmm".split())
_NORM = operators("layer_norm", "group_norm")
_ACTIVATION = operators("gelu", "silu", "sigmoid", "tanh")
_OUTPUT = operators(*"linear conv2d layer_norm group_norm".split())


# How results are made wrong.


def wide(call: Call) -> Any:
    """Run the call in float32: a fault inside an operator comes before the one rounding to the element type."""
    return map_floats(call, lambda tensor: tensor.float() if tensor.dtype in _HALF else tensor).run()


def narrow(call: Call, value: Tensor) -> Tensor:
    """Round to the element type of the call."""
    given = [one for one in (*call.args, *call.kwargs.values()) if isinstance(one, Tensor) and one.is_floating_point()]
    return value.to(call.kwargs.get("dtype") or given[0].dtype) if given else value


def cut(value: Tensor, bits: int) -> Tensor:
    """Round the significand to ``bits`` explicit bits, to nearest; gradients pass unchanged."""
    exponent = torch.frexp(value.detach().float())[1] - 1
    unit = torch.exp2((exponent - bits).float())
    rounded = torch.where(value == 0, 0.0, (value.detach().float() / unit).round() * unit).to(value.dtype)
    return value + (rounded - value).detach()


def _through(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Round to a narrower type and back; gradients pass unchanged."""
    return value + (value.detach().to(dtype).to(value.dtype) - value).detach()


def _patch(output: Tensor, wrong: Tensor) -> Tensor:
    """Take the wrong values, and the gradient of the right ones."""
    return output + (wrong - output).detach()


def _flat(output: Tensor) -> Tensor:
    """Return a copy as rows of its last dimension."""
    return output.detach().clone().reshape(-1, output.shape[-1])


# Environment and configuration.


def _cut_operands(call: Call, bits: int) -> Tensor:
    return narrow(call, map_floats(call, lambda tensor: cut(tensor.float(), bits)).run())


@kind("environment", _MATMUL, "PF102", reach="model")
def tf32_all(call: Call, _: float) -> Tensor:
    """Every product of matrices takes operands of 10 bits."""
    return _cut_operands(call, 10)


@kind("environment", _MATMUL, "PF102", reach="model")
def hf32_all(call: Call, _: float) -> Tensor:
    """Every product of matrices takes operands of 11 bits."""
    return _cut_operands(call, 11)


@kind("environment", _MATMUL, "PF102")
def tf32_one(call: Call, _: float) -> Tensor:
    """One product of matrices takes operands of 10 bits."""
    return _cut_operands(call, 10)


@kind("environment", operators("conv2d"), "PF102", reach="model")
def hf32_convolutions(call: Call, _: float) -> Tensor:
    """Every convolution takes operands of 11 bits, matrices are multiplied in full: the default on one NPU."""
    return _cut_operands(call, 11)


@kind("environment", _MATMUL, "PF102", "PF213", reach="model")
def autocast_left_on(call: Call, _: float) -> Tensor:
    """Every product of matrices runs in bfloat16."""
    return narrow(call, map_floats(call, lambda tensor: tensor.bfloat16()).run())


@kind("environment", _COMPUTES, "PF213", "PF102")
def operator_in_bfloat16(call: Call, _: float) -> Tensor:
    """One operator computes in bfloat16."""
    return narrow(call, map_floats(call, lambda tensor: tensor.bfloat16()).run())


@kind("environment", operators("softmax", "layer_norm", "gelu", "silu", "sigmoid", "tanh"), "PF213")
def operator_in_float16(call: Call, _: float) -> Tensor:
    """One operator computes in float16."""
    return narrow(call, map_floats(call, lambda tensor: tensor.half()).run())


@kind("environment", operators("linear", "matmul"), "PF213", keeps_gradients=True)
def accumulator_in_bfloat16(call: Call, _: float) -> Tensor:
    """One product adds blocks of 16 terms to a bfloat16 accumulator."""
    left, right = call.args[0].float(), call.args[1].float()
    right = right.mT if canonical(call.func) == "linear" else right
    total = 0.0
    for one, other in zip(left.split(16, -1), right.split(16, -2), strict=True):
        total = _through(torch.bfloat16, total + one @ other)
    bias = call.given(2, "bias") if canonical(call.func) == "linear" else None
    return narrow(call, total if bias is None else total + bias.float())


# Attention and masks.


def _mask_of(call: Call) -> int:
    """Return the position of the mask among the two arguments of an addition."""
    return 1 if is_mask(call.args[1]) else 0


def is_mask(value: Any) -> bool:
    """Return whether a tensor is an additive mask."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and bool(((value == 0) | (value < -1e4)).all())
        and bool((value < -1e4).any())
    )


@kind("attention", _adds_mask, "PF301", "PF224")
def mask_dropped(call: Call, _: float) -> Tensor:
    """The mask is not applied in one layer."""
    return call.args[1 - _mask_of(call)].clone()


@kind("attention", _adds_mask, "PF301")
def mask_inverted(call: Call, _: float) -> Tensor:
    """Masked and open places are exchanged."""
    mask = call.args[_mask_of(call)]
    return call.args[1 - _mask_of(call)] + torch.where(mask == 0, mask.min(), 0.0).to(mask.dtype)


@kind("attention", _adds_mask, "PF301")
def mask_off_by_one(call: Call, _: float) -> Tensor:
    """The mask is one place too far to the right, so that each token sees one more or one less."""
    mask = call.args[_mask_of(call)]
    return call.args[1 - _mask_of(call)] + torch.cat([mask[..., :1], mask[..., :-1]], -1)


@kind("attention", _adds_mask, "PF301", sizes=((3, 15), (3, 15)))
def mask_too_weak(call: Call, size: float) -> Tensor:
    """Masked places get a number that is not low enough, so that some attention is left."""
    mask = call.args[_mask_of(call)]
    return call.args[1 - _mask_of(call)] + mask.clamp(min=-size)


@kind("attention", _adds_mask_of_samples, "PF301", "PF306")
def mask_of_first_sample(call: Call, _: float) -> Tensor:
    """All samples get the mask of the first one."""
    mask = call.args[_mask_of(call)]
    return call.args[1 - _mask_of(call)] + mask[:1]


@kind("attention", _scales, "PF211", sizes=((1e-4, 0.3), (3e-2, 0.3)))
def scores_scaled(call: Call, size: float) -> Tensor:
    """Attention scores are scaled by another factor."""
    return narrow(call, wide(call) * (1 + size))


@kind("attention", _SOFTMAX, "PF213")
def softmax_in_bfloat16(call: Call, _: float) -> Tensor:
    """Softmax computes in bfloat16."""
    return narrow(call, map_floats(call, lambda tensor: tensor.bfloat16()).run())


@kind("attention", _SOFTMAX, "PF302", keeps_gradients=True)
def attention_uniform(call: Call, _: float) -> Tensor:
    """Every token attends to all others alike."""
    output = wide(call)
    return narrow(call, _patch(output, torch.full_like(output, 1 / output.shape[-1])))


@kind("attention", _SOFTMAX, "PF304", sizes=((1, 4), (1, 4)))
def keys_cut_off(call: Call, size: float) -> Tensor:
    """The last keys are ignored: a buffer of the kernel is too short."""
    scores = call.args[0].float().clone()
    scores[..., -math.ceil(size) :] = torch.finfo(torch.float32).min
    return narrow(call, Call(call.func, (scores, *call.args[1:]), call.kwargs).run())


@kind("attention", _SOFTMAX, "PF303", keeps_gradients=True)
def softmax_over_queries(call: Call, _: float) -> Tensor:
    """Softmax normalizes over the wrong dimension of a square."""
    output = wide(call)
    return narrow(call, _patch(output, call.args[0].detach().float().softmax(-2)))


@kind("attention", _moves_heads, "PF215", "PF226")
def heads_rotated(call: Call, _: float) -> Tensor:
    """The heads come out in another order."""
    output = call.run()
    return output.roll(1, 1) if output.shape[1] < output.shape[2] else output.roll(1, 2)


@kind("attention", _joins_heads, "PF215", "PF306", "PF226")
def samples_mixed(call: Call, _: float) -> Tensor:
    """Batch and sequence are exchanged when the heads are joined."""
    output = call.run()
    return output if output.dim() < 3 else output.transpose(0, 1).reshape(output.shape)


# Position encoding.


@kind("position", _rotates, "PF311", "PF215", reach="module")
def rope_other_halves(call: Call, _: float) -> Tensor:
    """Halves are rotated where neighbours are paired, or the other way round."""
    first, second = call.args[0]
    if canonical(call.func) == "cat":
        whole = torch.cat((second, -first), -1)
        return torch.stack((-whole[..., 1::2], whole[..., ::2]), -1).flatten(-2)
    whole = torch.stack((second, -first), -1).flatten(-2)
    half = whole.shape[-1] // 2
    return torch.cat((-whole[..., half:], whole[..., :half]), -1).view(*first.shape, 2)


@kind("position", operators("neg", module="attn"), "PF313", "PF211", reach="module")
def rope_sign_lost(call: Call, _: float) -> Tensor:
    """The rotation runs the other way: the sign of one half is lost."""
    return -call.run()


@kind("position", operators("cos", "sin", module="rotary"), "PF314", "PF213")
def rope_angles_in_bfloat16(call: Call, _: float) -> Tensor:
    """The angles are rounded to bfloat16 before the cosine, so that the error grows with the position."""
    return Call(call.func, (_through(torch.bfloat16, call.args[0]), *call.args[1:]), call.kwargs).run()


def _makes_angles(site: Site) -> bool:
    return "rotary" in site.name.module and site.name.operator in {"mul", "matmul"} and not site.scalar


@kind("position", _makes_angles, "PF315", "PF312", sizes=((1, 3), (1, 3)))
def rope_positions_shifted(call: Call, size: float) -> Tensor:
    """Positions begin at another number."""
    shifted = (one + round(size) if torch.equal(one, one.round()) else one for one in call.args)  # frequencies are no integers
    return Call(call.func, tuple(shifted), call.kwargs).run()


@kind("position", operators("embedding", module="position"), "PF315", sizes=((1, 3), (1, 3)))
def learned_positions_shifted(call: Call, size: float) -> Tensor:
    """Learned positions begin at another row."""
    where = call.args[0]
    return Call(call.func, ((where + round(size)) % call.args[1].shape[0], *call.args[1:]), call.kwargs).run()


@kind("position", _multiplies_by_cosine, "PF312", "PF221", sizes=((2, 8), (2, 8)))
def rope_of_fewer_dimensions(call: Call, size: float) -> Tensor:
    """The last dimensions are not rotated: the kernel takes another size of a head."""
    output = call.run()
    keep = output.shape[-1] - math.ceil(size)
    return torch.cat((output[..., :keep], call.args[0][..., keep:].expand_as(output[..., keep:])), -1)


# Norms, activations and elementwise operators.


@kind("norm and activation", operators("layer_norm"), "PF214", "PF203", sizes=((1e-5, 1e-2), (1e-3, 3e-1)))
def layer_norm_epsilon(call: Call, size: float) -> Tensor:
    """Another epsilon."""
    return call.replaced(4, "eps", call.given(4, "eps", 1e-5) + size).run()


@kind("norm and activation", operators("group_norm"), "PF214", "PF203", sizes=((1e-5, 1e-2), (1e-3, 3e-1)))
def group_norm_epsilon(call: Call, size: float) -> Tensor:
    """Another epsilon."""
    return call.replaced(4, "eps", call.given(4, "eps", 1e-5) + size).run()


@kind("norm and activation", _norm_of_squares, "PF214", "PF203", sizes=((1e-5, 1e-2), (1e-3, 3e-1)))
def rms_norm_epsilon(call: Call, size: float) -> Tensor:
    """Another epsilon, added by an operator of its own."""
    return call.run() + size


def _has_weight(site: Site) -> bool:
    return site.weighted and _NORM(site)


@kind("norm and activation", _has_weight, "PF217")
def norm_without_weight(call: Call, _: float) -> Tensor:
    """The weight of a norm is not applied."""
    return call.replaced(2, "weight", torch.ones_like(call.given(2, "weight"))).run()


@kind("norm and activation", operators("layer_norm"), "PF218", "PF211")
def norm_with_unbiased_variance(call: Call, _: float) -> Tensor:
    """The variance is divided by n - 1."""
    count = call.args[0].shape[-1]
    bias = call.given(3, "bias")
    output = wide(call)
    base = 0.0 if bias is None else bias.float()
    return narrow(call, (output - base) * math.sqrt((count - 1) / count) + base)


@kind("norm and activation", _NORM, "PF213")
def norm_in_bfloat16(call: Call, _: float) -> Tensor:
    """A norm computes in bfloat16."""
    return narrow(call, map_floats(call, lambda tensor: tensor.bfloat16()).run())


@kind("norm and activation", operators("group_norm"), "PF218")
def group_norm_of_other_groups(call: Call, _: float) -> Tensor:
    """Half as many groups."""
    return call.replaced(1, "num_groups", call.given(1, "num_groups") // 2).run()


@kind("norm and activation", operators("gelu"), "PF212")
def gelu_of_other_form(call: Call, _: float) -> Tensor:
    """The tanh form of GELU in place of the exact one, or the other way round."""
    other = "none" if call.kwargs.get("approximate", "none") == "tanh" else "tanh"
    return call.run(approximate=other)


@kind("norm and activation", operators("silu", "sigmoid"), "PF212")
def sigmoid_piecewise(call: Call, _: float) -> Tensor:
    """A sigmoid of straight lines."""
    given = call.args[0]
    return functional.hardswish(given) if canonical(call.func) == "silu" else functional.hardsigmoid(given)


@kind("norm and activation", _ACTIVATION, "PF213", "PF212")
def activation_in_float16(call: Call, _: float) -> Tensor:
    """An activation computes in float16 inside."""
    return narrow(call, map_floats(call, lambda tensor: tensor.half()).run())


@kind("norm and activation", operators("mul", owner="Activation"), "PF211", sizes=((1e-4, 0.1), (2e-2, 0.1)))
def activation_coefficient(call: Call, size: float) -> Tensor:
    """The constant inside an activation is another one."""
    return narrow(call, wide(call) * (1 + size))


@kind("norm and activation", _ACTIVATION, "PF225", sizes=((0.3, 0.9), (0.3, 0.9)))
def activation_clamped(call: Call, size: float) -> Tensor:
    """Large values are cut off at a share of the largest."""
    output = call.run()
    return output.clamp(max=size * float(output.detach().amax()))


@kind("norm and activation", _adds_residual, "PF209")
def residual_after_norm(call: Call, _: float) -> Tensor:
    """The residual is taken behind the norm."""
    return functional.layer_norm(call.args[0], call.args[0].shape[-1:]) + call.args[1]


@kind("norm and activation", _adds_residual, "PF224")
def residual_dropped(call: Call, _: float) -> Tensor:
    """The residual is not added."""
    return call.args[1] + torch.zeros_like(call.args[0])


@kind("norm and activation", operators("mul", owner="RMSNorm"), "PF213", keeps_gradients=True)
def norm_weight_in_bfloat16(call: Call, _: float) -> Tensor:
    """The product with the weight of a norm is rounded to bfloat16."""
    return _through(torch.bfloat16, call.run())


@kind("norm and activation", operators("embedding"), "PF213", keeps_gradients=True)
def embedding_in_bfloat16(call: Call, _: float) -> Tensor:
    """Embeddings pass through bfloat16."""
    return _through(torch.bfloat16, call.run())


# Loss and backward.


@kind("loss and backward", operators("cross_entropy", "mse_loss"), "PF404", "PF211", "PF804", sizes=((2, 8), (2, 8)))
def loss_divided_again(call: Call, size: float) -> Tensor:
    """The loss is divided once more, as for accumulation that is there already."""
    return call.run() / round(size)


@kind("loss and backward", operators("cross_entropy", "mse_loss"), "PF213")
def loss_in_bfloat16(call: Call, _: float) -> Tensor:
    """The loss is computed in bfloat16."""
    return narrow(call, map_floats(call, lambda tensor: tensor.bfloat16()).run())


@kind("loss and backward", operators("cross_entropy"), "PF222", "PF406", sizes=((1, 6), (1, 6)))
def loss_of_fewer_tokens(call: Call, size: float) -> Tensor:
    """The last tokens do not count."""
    keep = call.args[0].shape[0] - math.ceil(size)
    return Call(call.func, (call.args[0][:keep], call.args[1][:keep], *call.args[2:]), call.kwargs).run()


Gradients = list[Tensor | None]


def _with_grad(where: Where) -> Where:
    return lambda site: site.grad and where(site)


def _each(gradients: Gradients, change: Callable[[Tensor], Tensor]) -> Gradients:
    return [one if one is None else change(one) for one in gradients]


_BACKWARD_OPERATORS = operators(*"layer_norm softmax gelu silu sigmoid group_norm".split())


@kind("loss and backward", _with_grad(_BACKWARD_OPERATORS), "PF211", "PF233", of="backward", sizes=((1e-4, 1e-1), (3e-2, 3e-1)))
def backward_scaled(gradients: Gradients, size: float) -> Gradients:
    """The gradients that leave an operator are scaled."""
    return _each(gradients, lambda one: one * (1 + size))


@kind("loss and backward", _with_grad(operators("linear", "conv2d", "matmul")), "PF102", "PF232", of="operands")
def backward_matmul_in_tf32(operand: Tensor, _: float) -> Tensor:
    """The products of matrices in the backward of one operator take operands of 10 bits."""
    return cut(operand, 10)


def _fixed_noise(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float32).to(like.dtype)


@kind("loss and backward", _with_grad(_BACKWARD_OPERATORS), "PF213", "PF231", of="backward")
def backward_in_bfloat16(gradients: Gradients, _: float) -> Gradients:
    """The gradients that leave an operator pass through bfloat16."""
    return _each(gradients, lambda one: one.bfloat16().to(one.dtype))


@kind("loss and backward", _with_grad(operators("linear")), "PF221", of="backward", sizes=((0.05, 0.4), (0.05, 0.4)))
def weight_gradient_of_fewer_rows(gradients: Gradients, size: float) -> Gradients:
    """The last rows of a weight's gradient are not computed."""
    weight = gradients[1]
    if weight is not None:
        weight = weight.clone()
        weight[-max(1, round(size * len(weight))) :] = 0
    return [gradients[0], weight, *gradients[2:]]


def _has_bias(site: Site) -> bool:
    return site.weighted and operators("linear", "layer_norm")(site)  # a linear's third argument is its bias


@kind("loss and backward", _with_grad(_has_bias), "PF211", "PF233", of="backward", sizes=((0.1, 0.9), (0.1, 0.9)))
def bias_gradient_too_small(gradients: Gradients, size: float) -> Gradients:
    """The gradient of a bias lacks some of its terms."""
    return [*gradients[:-1], gradients[-1] if gradients[-1] is None else gradients[-1] * size]


@kind("loss and backward", operators("embedding"), "PF213", "PF231", of="backward")
def embedding_gradient_in_bfloat16(gradients: Gradients, _: float) -> Gradients:
    """The gradient of an embedding is added up in bfloat16."""
    return _each(gradients, lambda one: one.bfloat16().to(one.dtype))


def _any(_: Site) -> bool:
    return True


@kind("loss and backward", _any, "PF203", "PF801", "PF802", of="optimizer", sizes=((1e-7, 1e-4), (1e-7, 1e-4)))
def adam_epsilon(options: dict[str, Any], size: float) -> dict[str, Any]:
    """Adam has another epsilon."""
    return {**options, "eps": size}


@kind("loss and backward", _any, "PF203", "PF801", "PF802", of="optimizer", sizes=((0.9, 0.99), (0.9, 0.99)))
def adam_betas(options: dict[str, Any], size: float) -> dict[str, Any]:
    """Adam averages squares over another time; the first step shows it in its state only."""
    return {**options, "betas": (0.9, size)}


@kind("loss and backward", _any, "PF203", "PF801", "PF802", of="optimizer", sizes=((0.05, 0.3), (0.05, 0.3)))
def weight_decay(options: dict[str, Any], size: float) -> dict[str, Any]:
    """Another weight decay."""
    return {**options, "weight_decay": size}


@kind("loss and backward", _any, "PF203", "PF801", "PF802", of="optimizer", sizes=((1.5, 4), (1.5, 4)))
def learning_rate(options: dict[str, Any], size: float) -> dict[str, Any]:
    """Another learning rate."""
    return {**options, "lr": options["lr"] * size}


# Random numbers, data and kernels.

_RELATIVE = ((3e-5, 3e-2), (3e-3, 1e-1))


@kind("random, data and kernel", _COMPUTES, "PF211", sizes=_RELATIVE)
def output_scaled(call: Call, size: float) -> Tensor:
    """The output is scaled."""
    return narrow(call, wide(call) * (1 + size))


@kind("random, data and kernel", _COMPUTES, "PF228", sizes=((1e-3, 1e-1), (5e-2, 5e-1)), keeps_gradients=True)
def row_scaled(call: Call, size: float) -> Tensor:
    """One row of the output is scaled."""
    output = wide(call)
    rows = _flat(output)
    rows[len(rows) // 3] *= 1 + size
    return narrow(call, _patch(output, rows.view(output.shape)))


@kind("random, data and kernel", _COMPUTES, "PF228", sizes=((0.5, 4), (0.5, 4)), keeps_gradients=True)
def element_wrong(call: Call, size: float) -> Tensor:
    """One element is wrong by its own size."""
    output = wide(call)
    rows = _flat(output)
    column = rows[len(rows) // 2].abs().argmax()
    rows[len(rows) // 2, column] *= 1 + size
    return narrow(call, _patch(output, rows.view(output.shape)))


@kind("random, data and kernel", _OUTPUT, "PF226", "PF215", keeps_gradients=True)
def rows_swapped(call: Call, _: float) -> Tensor:
    """Two rows are exchanged."""
    output = wide(call)
    rows = _flat(output)
    rows[[0, len(rows) // 2]] = rows[[len(rows) // 2, 0]]
    return narrow(call, _patch(output, rows.view(output.shape)))


@kind("random, data and kernel", _OUTPUT, "PF221", sizes=((1, 7), (1, 7)), keeps_gradients=True)
def tail_not_computed(call: Call, size: float) -> Tensor:
    """The last columns are left at zero: a tile at the border is missing."""
    output = wide(call)
    rows = _flat(output)
    rows[:, -math.ceil(size) :] = 0
    return narrow(call, _patch(output, rows.view(output.shape)))


@kind("random, data and kernel", operators("linear"), "PF222", sizes=((1, 15), (1, 15)))
def terms_not_added(call: Call, size: float) -> Tensor:
    """The last terms of every sum are left out: K is no multiple of the kernel's block."""
    keep = call.args[0].shape[-1] - math.ceil(size)
    return Call(call.func, (call.args[0][..., :keep], call.args[1][..., :keep], *call.args[2:]), call.kwargs).run()


@kind("random, data and kernel", _multiplies_view, "PF223")
def strides_ignored(call: Call, _: float) -> Tensor:
    """The right operand is read in the order of its memory, though it is a transposed view."""
    right = call.args[1]
    order = sorted(range(right.dim()), key=lambda dim: -right.stride(dim))
    inverse = right.permute(order).reshape(right.shape)
    return Call(call.func, (call.args[0], inverse, *call.args[2:]), call.kwargs).run()


@kind("random, data and kernel", _COMPUTES, "PF501", keeps_gradients=True)
def one_nan(call: Call, _: float) -> Tensor:
    """One element is NaN."""
    output = call.run()
    wrong = output.detach().clone()
    wrong.view(-1)[wrong.numel() // 3] = math.nan
    return torch.where(wrong.isnan(), wrong, output)


@kind("random, data and kernel", operators("dropout"), "PF106", sizes=((0.02, 0.2), (0.02, 0.2)))
def dropout_left_on(call: Call, size: float) -> Tensor:
    """A dropout is active on the target alone."""
    return functional.dropout(call.args[0], size, training=True)


@kind("random, data and kernel", _any, "PF401", "PF421", of="weights")
def weights_through_bfloat16(model: torch.nn.Module, _: float) -> None:
    """The weights came through a conversion to bfloat16."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16 if weight.dtype != torch.bfloat16 else torch.float8_e4m3fn).to(weight.dtype))


@kind("random, data and kernel", operators("linear"), "PF401", of="weights", sizes=((1e-4, 1e-1), (2e-2, 1e-1)))
def one_weight_differs(weight: Tensor, size: float) -> None:
    """One layer's weight is another one."""
    with torch.no_grad():
        weight.add_(size * weight.float().norm() / weight.numel() ** 0.5 * _fixed_noise(weight)[: len(weight)])


@kind("random, data and kernel", _any, "PF402", of="inputs")
def inputs_differ(inputs: dict[str, Any], _: float) -> None:
    """One number of the inputs is another one: another token, or another element of a tensor."""
    first = next(iter(inputs.values()))
    flat = first.view(-1)
    flat[3] = flat[3] + 1 if not first.is_floating_point() else flat[3] * 1.05


def kinds_of(names: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds with these names, all of them if there are none."""
    return [KINDS[name] for name in names] if names else list(KINDS.values())

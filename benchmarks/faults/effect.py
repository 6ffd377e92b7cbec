"""How large a fault is at the operator where it happens, against float64 at the same inputs.

The formulas are those of the introduced error and of the rounding residue, computed here a second time and from live tensors,
so that the size of a fault does not depend on the code that is to find it. ``u`` is half a unit in the last place at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .calls import Call, canonical
from .chips import ALTERNATIVES, Chip

DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # of the significand, the hidden one included
_SMALLEST = {torch.float32: -126, torch.float16: -14, torch.bfloat16: -126}  # exponent of the smallest normal number
MATMULS = frozenset("linear matmul bmm mm addmm baddbmm conv1d conv2d grouped_mm einsum".split())
_CANCELLING = MATMULS | frozenset("add sub sum mean".split())  # scaled by the sum of |terms| in place of the norm
_BINS = 32
_FEW = 64
_ONE_NUMBER = 2.5 * 12**0.5  # deviations that a single number is off by on control ``coarse2``; counted as growing threefold


@dataclass(frozen=True)
class Effect:
    """The size of a fault at one output of one operator.

    Attributes:
        rho: Error of the faulty output against float64, over the same of the healthy operator (at least u / 2).
        residue: Largest ratio of the rounding residue's variance, slope, curve and largest element to the healthy ones: those
            of this CPU, or of a control's other algorithms where they leave more.
        matmul: The operator multiplies matrices, so that another line applies.
    """

    rho: float
    residue: float
    matmul: bool

    def plain(self) -> dict[str, Any]:
        """Return it for a JSON line."""
        return asdict(self)


def measure(call: Call, wrong: Any) -> Effect:
    """Measure what a replaced call returned against what its function returns in float64 for the same arguments.

    Both the control and the float64 value are computed here by plain torch on the CPU.
    """
    with torch.no_grad():
        exact, plain = first_tensor(_in_double(call).run()), first_tensor(call.run())
        with Chip(ALTERNATIVES):
            other = first_tensor(call.run())
        scale = first_tensor(of_magnitudes(call).run()) if canonical(call.func) in _CANCELLING else exact
    return compare(exact, plain, first_tensor(wrong), scale, other=other, matmul=canonical(call.func) in MATMULS)


def compare(  # noqa: PLR0913  three results, and what they are measured by
    exact: torch.Tensor, plain: torch.Tensor, wrong: torch.Tensor, scale: torch.Tensor, *, other: torch.Tensor, matmul: bool
) -> Effect:
    """Compare a wrong and a plain result with the exact one; integers and other shapes are infinitely wrong if they differ.

    ``other`` is what a correct chip with other algorithms gives.
    """
    exact, plain, wrong, scale, other = (one.detach() for one in (exact, plain, wrong, scale, other))
    if wrong.shape != exact.shape or wrong.dtype not in DIGITS or plain.dtype not in DIGITS:
        same = wrong.shape == plain.shape and torch.equal(wrong, plain)
        return Effect(0.0 if same else float("inf"), 0.0 if same else float("inf"), matmul)
    if torch.equal(wrong, plain):
        return Effect(rho_of(plain, exact, plain, scale), 1.0, matmul)
    return Effect(rho_of(wrong, exact, plain, scale), _residue_ratio(wrong, exact, (plain, other), scale), matmul)


def rho_of(wrong: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor, scale: torch.Tensor) -> float:
    """Return the error of ``wrong`` over that of ``plain``, both against ``exact`` and relative to the norm of ``scale``."""
    finite = torch.isfinite(exact) & torch.isfinite(scale)
    if not torch.isfinite(wrong.double()[finite]).all():
        return float("inf")
    norm = float(scale[finite].double().norm())
    if norm == 0:
        return float("inf") if bool((wrong != plain).any()) else 0.0
    error, own = (float((value.double() - exact)[finite].norm()) / norm for value in (wrong, plain))
    return error / max(own, 2.0 ** -DIGITS[plain.dtype] / 2)


def _residue_ratio(wrong: torch.Tensor, exact: torch.Tensor, healthy: Sequence[torch.Tensor], scale: torch.Tensor) -> float:
    """Return how much the rounding residue grew: the largest of the ratios of its four numbers.

    The variance of few elements is a lottery: one that is off by half a unit in the last place, as rounding may be, has 3.
    """
    of_one = exact.numel() == 1
    variance = _ONE_NUMBER**2 / 3 if of_one else 3.0 if exact.numel() < _FEW else 1.0
    least = (variance, 6.0, 8.0, _ONE_NUMBER / 3 if of_one else 1.0)
    of_healthy = [_residue(one, exact, scale) for one in healthy]
    return max(
        of_wrong / max(*others) for of_wrong, *others in zip(_residue(wrong, exact, scale), *of_healthy, least, strict=True)
    )


def _residue(value: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> tuple[float, float, float, float]:
    """Return variance, slope, curve and largest element of the error, in units of one rounding's standard deviation.

    Every chip computes in float32 inside. A result that is small beside the terms that it is the sum of, or beside the whole
    tensor, as in the tail of a GELU, is off by more than one rounding of itself: the unit is at least that of float32 at both.
    """
    dtype = value.dtype
    keep = torch.isfinite(exact) & torch.isfinite(value)
    exact, value, scale = exact[keep], value[keep].double(), scale.double().expand_as(keep)[keep]
    exponent = (torch.frexp(exact)[1] - 1).clamp(min=_SMALLEST[dtype]).double()
    deviation = torch.exp2(exponent - DIGITS[dtype] + 1) / 12**0.5
    inner = scale.abs().clamp(min=float(exact.square().mean().sqrt())) if exact.numel() else scale
    deviation = torch.maximum(deviation, inner * 2.0 ** -DIGITS[torch.float32])
    raw = (value - exact) / deviation
    if not raw.numel():
        return 0.0, 0.0, 0.0, 0.0
    clipped = raw.clamp(-8, 8)
    weight = exact / deviation
    slope = float((clipped * weight).sum().abs() / weight.norm().clamp(min=1e-300))
    ordered = clipped[exact.argsort()].tensor_split(min(_BINS, raw.numel()))
    curve = max(float(part.sum().abs()) / part.numel() ** 0.5 for part in ordered)
    return float((raw * raw).mean()), slope, curve, float(raw.abs().max())


def _in_double(call: Call) -> Call:
    """Return the call with every floating tensor in float64."""
    return map_floats(call, lambda tensor: tensor.detach().double())


def of_magnitudes(call: Call) -> Call:
    """Return the call with the absolute values of every floating tensor, in float64."""
    return map_floats(call, lambda tensor: tensor.detach().double().abs())


def map_floats(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """Return the call with every floating tensor changed; an element type among the arguments becomes that of the first one."""
    dtypes: list[torch.dtype] = []

    def mapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point():
                return value
            dtypes.append((made := change(value)).dtype)
            return made
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return dtypes[0] if dtypes else value
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(mapped(one) for one in value)
        return value

    return Call(call.func, tuple(map(mapped, call.args)), {name: mapped(value) for name, value in call.kwargs.items()})


def first_tensor(value: Any) -> torch.Tensor:
    """Return the first tensor of a result that may be a tuple."""
    while not isinstance(value, torch.Tensor):
        value = value[0]
    return value

"""Known ways to compute an operator differently, each tried on the target's own inputs.

An error whose size and direction fit a cause may still have another one. But if ``gelu`` in its tanh form gives the target's
output to the last bits, and the exact form does not, nothing is left to guess. Each variant is compared with plain float64 at
the same inputs::

    share = 1 - |target - variant|^2 / |target - float64|^2       1 explains everything, 0 or less nothing
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from precflow.diagnosis.evidence.expected import Inputs, compute_expected
from precflow.dumps.dtypes import Array

_FITS = 0.9  # share of the error that a variant has to explain
_MOST_TERMS = 64  # of a sum that are left out at its end
_SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)  # rows: positions counted from another start, or an offset for padding
_TYPES = (("bfloat16", np.dtype(ml_dtypes.bfloat16)), ("float16", np.dtype(np.float16)))

Variants = Iterator[tuple[str, Array | None]]


@dataclass(frozen=True)
class VariantFit:
    """The variant that explains a target best.

    Attributes:
        name: Such as ``gelu_tanh``; ``""`` if none fits.
        share: Share of the error's energy that the best one explains, 0 to 1.
    """

    name: str
    share: float


def fit_variant(operator: str, arguments: Mapping[str, str], inputs: Inputs, target: Array) -> VariantFit | None:
    """Find the variant of an operator that gives the target's output; ``None`` if there are none, or nothing differs.

    Args:
        operator: Canonical name.
        arguments: The reference's arguments that are not tensors.
        inputs: What the target was given, floating point as float64.
        target: What it returned, as float64.
    """
    exact = compute_expected(operator, arguments, inputs)
    if exact is None or exact.shape != target.shape:
        return None
    usable = np.isfinite(exact) & np.isfinite(target)
    energy = float(np.sum((target - exact)[usable] ** 2))
    if energy == 0.0 or not np.isfinite(energy):
        return None
    best = VariantFit("", 0.0)
    call = _TargetCall(operator, arguments, inputs, target, exact)
    own = _FAMILIES.get(operator)
    for name, variant in itertools.chain(own(call) if own else (), _round_inputs(operator, arguments, inputs)):
        if variant is None or variant.shape != target.shape:
            continue
        share = 1.0 - float(np.sum((target - variant)[usable] ** 2)) / energy
        if share > best.share:
            best = VariantFit(name, share)
    return best if best.share > _FITS else VariantFit("", best.share)


@dataclass(frozen=True)
class _TargetCall:
    """What the target was given and returned, and float64 at the same inputs."""

    operator: str
    arguments: Mapping[str, str]
    inputs: Inputs
    target: Array
    exact: Array

    def tensor(self, position: int, name: str) -> Array | None:
        """Return a tensor by position or name."""
        return self.inputs.get(str(position), self.inputs.get(name))

    def text(self, position: int, name: str, default: str) -> str:
        """Return an argument that is no tensor by name or position."""
        return self.arguments.get(name, self.arguments.get(str(position), default))

    def compute_without(self, *names: str) -> Array | None:
        """Return float64 without some inputs."""
        return compute_expected(
            self.operator, self.arguments, {key: values for key, values in self.inputs.items() if key not in names}
        )

    def compute_with(self, **changes: Array) -> Array | None:
        """Return float64 with other inputs, by position: ``_0`` is the first."""
        changed = {key.removeprefix("_"): value for key, value in changes.items()}
        return compute_expected(self.operator, self.arguments, {**self.inputs, **changed})


def _vary_activation(call: _TargetCall) -> Variants:
    x = call.tensor(0, "input")
    if x is None:
        return
    if call.operator == "gelu":
        is_tanh = call.text(1, "approximate", "none").strip("'") == "tanh"
        other = "none" if is_tanh else "tanh"
        yield "gelu_erf" if is_tanh else "gelu_tanh", compute_expected("gelu", {"approximate": other}, {"0": x})
        yield "gelu_sigmoid", x / (1.0 + np.exp(-1.702 * x))
        return
    hard = np.clip(x / 6.0 + 0.5, 0.0, 1.0)  # hardsigmoid, and with x before it hardswish
    yield "straight_lines", x * hard if call.operator == "silu" else hard


def _vary_norm(call: _TargetCall) -> Variants:
    x, weight, bias = call.tensor(0, "input"), call.tensor(2, "weight"), call.tensor(3, "bias")
    if x is None:
        return
    yield "no_weight", call.compute_without("2", "weight")
    yield "no_bias", call.compute_without("3", "bias")
    yield "no_weight_and_bias", call.compute_without("2", "weight", "3", "bias")
    if weight is not None:
        yield "weight_plus_one", call.compute_with(_2=weight + 1.0)
    if call.operator == "group_norm":
        groups = int(call.text(1, "num_groups", "1"))
        for other in {groups // 2, groups * 2, 1, x.shape[1]} - {0, groups}:
            if x.shape[1] % other == 0:
                arguments = {**call.arguments, "1": str(other), "num_groups": str(other)}
                yield "other_groups", compute_expected("group_norm", arguments, call.inputs)
    if call.operator == "layer_norm":
        yield "not_centred", compute_expected("rms_norm", {**call.arguments, "eps": call.text(4, "eps", "1e-5")}, call.inputs)
        shift = np.zeros(1) if bias is None else bias
        count = x.shape[-1]
        # Over n - 1 in place of n the variance is n / (n - 1) times as large; the epsilon is too small to matter here.
        yield "unbiased_variance", (call.exact - shift) * math.sqrt((count - 1) / count) + shift


def _vary_softmax(call: _TargetCall) -> Variants:
    scores = call.tensor(0, "input")
    if scores is None:
        return
    yield "uniform", np.full(call.exact.shape, 1.0 / call.exact.shape[int(call.text(1, "dim", "-1"))])
    for axis in range(scores.ndim):
        yield "other_axis", compute_expected("softmax", {"dim": str(axis)}, {"0": scores})
    yield from _cut_keys(scores, call.target)


def _vary_product(call: _TargetCall) -> Variants:
    first, second = call.tensor(0, "input"), call.tensor(1, "weight" if call.operator == "linear" else "other")
    if first is None or second is None or second.ndim < 2:
        return
    if call.operator == "linear":
        yield "no_bias", call.compute_without("2", "bias")
        yield "transposed", call.compute_with(_1=second.T)
        yield from _leave_out_terms(first, second, call.exact)
        return
    # A transposed operand whose strides were ignored: its memory read as if it lay in order.
    yield "memory_order", call.compute_with(_1=np.swapaxes(second, -1, -2).reshape(second.shape))
    yield "memory_order", call.compute_with(_0=np.swapaxes(first, -1, -2).reshape(first.shape))
    if first.ndim == second.ndim == 2:
        yield from _leave_out_terms(first, second.T, call.exact)


def _vary_pointwise(call: _TargetCall) -> Variants:
    for position, name in enumerate(("only_first", "only_second")):
        value = call.tensor(position, "other" if position else "input")
        if value is not None:
            yield name, np.broadcast_to(value, np.broadcast_shapes(value.shape, call.exact.shape))


def _vary_embedding(call: _TargetCall) -> Variants:
    rows, table = call.tensor(0, "input"), call.tensor(1, "weight")
    if rows is not None and table is not None:
        for shift in _SHIFTS:
            yield "rows_shifted", table[np.clip(rows + shift, 0, len(table) - 1)]


_FAMILIES: dict[str, Callable[[_TargetCall], Variants]] = {
    **dict.fromkeys(("gelu", "silu", "sigmoid"), _vary_activation),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _vary_norm),
    "softmax": _vary_softmax,
    **dict.fromkeys(("linear", "matmul", "bmm", "mm"), _vary_product),
    **dict.fromkeys(("add", "sub", "mul", "div"), _vary_pointwise),
    "embedding": _vary_embedding,
}


def _cut_keys(scores: Array, target: Array) -> Variants:
    """Yield a softmax without its last keys, as many as are zero on the target."""
    zero = np.all(target == 0.0, axis=tuple(range(target.ndim - 1)))
    count = int(np.argmin(zero[::-1])) if not zero.all() else 0
    if count:
        left = scores[..., :-count]
        powers = np.exp(left - left.max(axis=-1, keepdims=True))
        rest = np.zeros((*scores.shape[:-1], count))
        yield "last_keys_ignored", np.concatenate([powers / powers.sum(axis=-1, keepdims=True), rest], axis=-1)


def _leave_out_terms(x: Array, weight: Array, exact: Array) -> Variants:
    """Yield products whose sums lack their last terms, one more each time."""
    shortened = exact.copy()
    for count in range(1, min(_MOST_TERMS, x.shape[-1] - 1) + 1):
        shortened -= x[..., -count, None] * weight[:, -count]
        yield "last_terms_left_out", shortened


def _round_inputs(operator: str, arguments: Mapping[str, str], inputs: Inputs) -> Variants:
    """Yield the operator on inputs of a narrower type, with a result in it and without."""
    for name, dtype in _TYPES:
        with np.errstate(over="ignore"):
            narrow = {
                key: value.astype(dtype).astype(np.float64) if value.dtype.kind == "f" else value
                for key, value in inputs.items()
            }
            # Inputs of that type already: only the rounding of the result would be explained, which is right in that type.
            if all(np.array_equal(narrow[key], value, equal_nan=value.dtype.kind == "f") for key, value in inputs.items()):
                continue
            output = compute_expected(operator, arguments, narrow)
            yield f"inputs_in_{name}", output
            if output is not None:
                yield f"inputs_in_{name}", output.astype(dtype).astype(np.float64)

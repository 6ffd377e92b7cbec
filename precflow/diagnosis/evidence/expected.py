"""What an operator should have given: its output in float64, computed by NumPy from the inputs that a side recorded.

The difference between the sides is what arrived plus what the operator added. Computed from the target's own inputs, only what
the operator added is left, and rules can look at its shape even in 16 bits. Operators that are not here return ``None``.

The agent has some of these formulas too (:mod:`precflow.agent.replay.compositions`), for another purpose: there torch computes
every recorded call, on the machine of a side. Here rules look at a few suspects on the judge's machine, which has no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from precflow.dumps.dtypes import Array

Inputs = Mapping[str, Array]
MOST_PRODUCTS = 1 << 30  # multiplications of one product of matrices: about a second on one core

_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none


def compute_expected(operator: str, arguments: Mapping[str, str], inputs: Inputs) -> Array | None:
    """Return the output in float64; ``None`` for an operator, an argument or a size that is not handled.

    Args:
        operator: Canonical name.
        arguments: Arguments that are not tensors, as text, by name or position.
        inputs: Tensors by name or position.

    >>> compute_expected("mul", {"1": "0.5"}, {"0": np.array([2.0])})
    array([1.])
    """
    compute = _OPERATORS.get(operator)
    if compute is None:
        return None
    try:
        with np.errstate(all="ignore"):  # mask fills and NaN of a target go through here too
            return compute(_Given(arguments, inputs))
    except (KeyError, ValueError, TypeError, IndexError):  # an argument in a form that is not known here
        return None


class _Given:
    """Arguments of a call, tensors and others, by position or name."""

    def __init__(self, arguments: Mapping[str, str], inputs: Inputs) -> None:
        self.arguments, self.inputs = arguments, inputs

    def tensor(self, position: int, name: str = "") -> Array:
        """Return a tensor.

        Raises:
            KeyError: The call was not given it.
        """
        tensor = self.optional(position, name)
        if tensor is None:
            raise KeyError(name or position)
        return tensor

    def optional(self, position: int, name: str) -> Array | None:
        """Return a tensor, floats as float64; ``None`` if the call was not given it."""
        tensor = self.inputs.get(str(position), self.inputs.get(name))
        return None if tensor is None else tensor.astype(np.float64) if tensor.dtype.kind in "fc" else tensor

    def value(self, position: int, name: str) -> Any:
        """Return a tensor, or a number."""
        tensor = self.optional(position, name)
        return float(self.arguments.get(str(position), self.arguments.get(name, "nan"))) if tensor is None else tensor

    def text(self, position: int, name: str, default: str) -> str:
        """Return another argument as it was recorded."""
        return self.arguments.get(name, self.arguments.get(str(position), default))

    def numbers(self, position: int, name: str, default: str) -> list[int]:
        """Return the whole numbers of an argument: ``(2, 2)`` and ``2`` become ``[2, 2]`` and ``[2]``."""
        return [int(number) for number in re.findall(r"-?\d+", self.text(position, name, default))]


def multiply(left: Array, right: Array) -> Array:
    """Return a product of matrices.

    Raises:
        ValueError: It would take too long, or the shapes do not fit.
    """
    rows = math.prod(left.shape) if left.ndim else 0
    if rows * (right.shape[-1] if right.ndim > 1 else 1) > MOST_PRODUCTS:
        raise ValueError("too large")
    result: Array = np.matmul(left, right)
    return result


def _linear(given: _Given) -> Array:
    bias = given.optional(2, "bias")
    product = multiply(given.tensor(0, "input"), given.tensor(1, "weight").T)
    return product if bias is None else product + bias


def _addmm(given: _Given) -> Array:
    if given.arguments.keys() & {"alpha", "beta"}:
        alpha, beta = float(given.text(4, "alpha", "1")), float(given.text(3, "beta", "1"))
    else:
        alpha = beta = 1.0
    product = multiply(given.tensor(1, "mat1"), given.tensor(2, "mat2"))
    return alpha * product + (beta * given.tensor(0, "input") if beta else 0.0)


def _convolve(given: _Given) -> Array:
    """Convolve in two dimensions, without groups: one product of matrices over all windows."""
    values, weight, bias = given.tensor(0, "input"), given.tensor(1, "weight"), given.optional(2, "bias")
    stride, padding, dilation = (
        (sizes * 2)[:2]
        for sizes in (given.numbers(3, "stride", "1"), given.numbers(4, "padding", "0"), given.numbers(5, "dilation", "1"))
    )
    if given.numbers(6, "groups", "1") != [1] or values.ndim != 4 or not padding:
        raise ValueError("not handled")
    values = np.pad(values, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    span = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(values, span, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    batch, _, height, width = windows.shape[:4]
    if batch * height * width * weight.size > MOST_PRODUCTS:
        raise ValueError("too large")
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch * height * width, -1)
    product = (columns @ weight.reshape(len(weight), -1).T).reshape(batch, height, width, len(weight)).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(product if bias is None else product + bias[:, None, None])


def _softmax(given: _Given) -> Array:
    values, axis = given.tensor(0, "input"), int(given.text(1, "dim", "-1"))
    powers = np.exp(values - values.max(axis=axis, keepdims=True))  # float64 ends at exp(709)
    result: Array = powers / powers.sum(axis=axis, keepdims=True)
    return result


def _normalise_layer(given: _Given) -> Array:
    values = given.tensor(0, "input")
    axes = tuple(range(-len(given.numbers(1, "normalized_shape", "1")), 0))
    epsilon = float(given.text(4, "eps", "1e-5"))
    centred = values - values.mean(axis=axes, keepdims=True)
    scaled = centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    weight, bias = given.optional(2, "weight"), given.optional(3, "bias")
    result: Array = scaled * (1.0 if weight is None else weight) + (0.0 if bias is None else bias)
    return result


def _normalise_by_squares(given: _Given) -> Array:
    values, weight = given.tensor(0, "input"), given.optional(2, "weight")
    axes = tuple(range(-len(given.numbers(1, "normalized_shape", "1")), 0))
    text = given.text(3, "eps", "None")  # without one it is float32's
    epsilon = float(np.finfo(np.float32).eps) if text == "None" else float(text)
    scaled = values / np.sqrt(np.mean(values * values, axis=axes, keepdims=True) + epsilon)
    result: Array = scaled if weight is None else scaled * weight
    return result


def _normalise_groups(given: _Given) -> Array:
    values, weight, bias = given.tensor(0, "input"), given.optional(2, "weight"), given.optional(3, "bias")
    groups, epsilon = int(given.text(1, "num_groups", "")), float(given.text(4, "eps", "1e-5"))
    rows = values.reshape(len(values) * groups, -1)
    centred = rows - rows.mean(axis=1, keepdims=True)
    scaled = (centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + epsilon)).reshape(values.shape)
    channels = (-1, *([1] * (values.ndim - 2)))
    result: Array = scaled * (1.0 if weight is None else weight.reshape(channels)) + (
        0.0 if bias is None else bias.reshape(channels)
    )
    return result


def _normalise_batch(given: _Given) -> Array:
    """Compute batch_norm with the mean and variance that the module keeps, or those of the batch while it trains."""
    values = given.tensor(0, "input")
    if given.text(5, "training", "False") == "True":
        axes = (0, *range(2, values.ndim))
        mean, variance = values.mean(axis=axes), values.var(axis=axes)
    else:
        mean, variance = given.tensor(1, "running_mean"), given.tensor(2, "running_var")
    weight, bias, epsilon = given.optional(3, "weight"), given.optional(4, "bias"), float(given.text(7, "eps", "1e-5"))
    channels = (-1, *([1] * (values.ndim - 2)))
    scaled = (values - mean.reshape(channels)) / np.sqrt(variance + epsilon).reshape(channels)
    result: Array = scaled * (1.0 if weight is None else weight.reshape(channels)) + (
        0.0 if bias is None else bias.reshape(channels)
    )
    return result


def _gelu(given: _Given) -> Array:
    x = given.tensor(0, "input")
    if given.text(1, "approximate", "none").strip("'") == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    result: Array = 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    return result


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _multiply_by_equation(given: _Given) -> Array:
    """Compute einsum for two tensors, with its equation as the first argument."""
    equation, left, right = given.arguments["0"].strip("'\""), given.tensor(1), given.tensor(2)
    if left.size * right.size > MOST_PRODUCTS:  # more than it does: common indices count twice
        raise ValueError("too large")
    result: Array = np.einsum(equation, left, right)
    return result


def _reduce_loss(given: _Given, losses: Array, position: int, weights: Array | float = 1.0) -> Array:
    reduction = given.text(position, "reduction", "mean").strip("'")
    if any(given.arguments.get(name, "None") != "None" for name in ("size_average", "reduce")):  # older names of the same
        raise ValueError("not handled")
    if reduction == "none":
        return losses
    total = np.sum(losses)
    return np.asarray(total / np.sum(np.broadcast_to(weights, losses.shape)) if reduction == "mean" else total)


def _measure_cross_entropy(given: _Given) -> Array:
    """Compute cross_entropy for labels that are numbers of classes."""
    scores, labels, weight = given.tensor(0, "input"), given.tensor(1, "target"), given.optional(2, "weight")
    if scores.ndim < 2 or labels.dtype.kind not in "iu" or float(given.text(7, "label_smoothing", "0.0")) != 0.0:
        raise ValueError("not handled")
    ignored = int(given.text(4, "ignore_index", "-100"))
    rows, flat = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1]), labels.reshape(-1)
    kept = flat != ignored
    chosen = np.where(kept, flat, 0)
    largest = rows.max(axis=1)
    logarithms = rows[np.arange(len(rows)), chosen] - largest - np.log(np.sum(np.exp(rows - largest[:, None]), axis=1))
    weights = kept * (np.ones(len(rows)) if weight is None else weight[chosen])
    return _reduce_loss(given, (-weights * logarithms).reshape(labels.shape), 6, weights.reshape(labels.shape))


def _loss_of_difference(function: Callable[[Array], Array]) -> Callable[[_Given], Array]:
    return lambda given: _reduce_loss(given, function(given.tensor(0, "input") - given.tensor(1, "target")), 4)


def _bend(x: Array, slopes: Array) -> Array:
    """Multiply what is below zero by one slope, or by one for each index of the second axis."""
    slope = slopes.reshape(-1, *([1] * (x.ndim - 2))) if slopes.size > 1 else slopes.reshape(())
    bent: Array = np.where(x < 0.0, x * slope, x)
    return bent


def _pointwise(function: Callable[[Array], Array]) -> Callable[[_Given], Array]:
    return lambda given: function(given.tensor(0, "input"))


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[[_Given], Array]:
    def compute(given: _Given) -> Array:
        """Compute it for tensors and numbers; a factor of the second (``alpha``) is not handled."""
        if "alpha" in given.arguments:
            raise ValueError("not handled")
        return np.asarray(function(given.value(0, "input"), given.value(1, "other")), np.float64)

    return compute


_OPERATORS: dict[str, Callable[[_Given], Array]] = {
    "linear": _linear,
    **dict.fromkeys(
        ("matmul", "mm", "bmm", "mv", "dot"), lambda given: multiply(given.tensor(0, "input"), given.tensor(1, "other"))
    ),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "conv2d": _convolve,
    "outer": lambda given: np.multiply.outer(given.tensor(0, "input"), given.tensor(1, "vec2")),
    "einsum": _multiply_by_equation,
    "cross_entropy": _measure_cross_entropy,
    "mse_loss": _loss_of_difference(np.square),
    "l1_loss": _loss_of_difference(np.abs),
    "softmax": _softmax,
    "layer_norm": _normalise_layer,
    "rms_norm": _normalise_by_squares,
    "group_norm": _normalise_groups,
    "batch_norm": _normalise_batch,
    "gelu": _gelu,
    "sigmoid": _pointwise(_sigmoid),
    "silu": _pointwise(lambda x: x * _sigmoid(x)),
    "relu": _pointwise(lambda x: np.maximum(x, 0.0)),
    "leaky_relu": lambda given: _bend(given.tensor(0, "input"), np.asarray(float(given.text(1, "negative_slope", "0.01")))),
    "prelu": lambda given: _bend(given.tensor(0, "input"), given.tensor(1, "weight")),
    **{name: _pointwise(getattr(np, name)) for name in ("tanh", "exp", "log", "sqrt", "sin", "cos", "abs")},
    "embedding": lambda given: given.tensor(1, "weight")[given.tensor(0, "input")],
    "neg": _pointwise(np.negative),
    "rsqrt": _pointwise(lambda x: 1.0 / np.sqrt(x)),
    **{name: _of_two(getattr(np, of)) for name, of in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"))},
    **{name: _of_two(getattr(np, of)) for name, of in (("div", "divide"), ("pow", "power"))},
}

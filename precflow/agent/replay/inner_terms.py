"""The largest value that a function adds up on its way to a result: a chip may round it to its own 16-bit type.

A LayerNorm is ``h * w + b`` with the normalized value ``h``. A chip that rounds ``h * w`` to bfloat16 is off by half a unit in
the last place of ``h * w``, which is hundreds of units of the result where the bias cancels it. So is a ``tanh`` near zero that
is made of ``1 - exp(-2 x)``. Such an error is as large as the rounding of other elements of the tensor; that of a wrong
operator is larger.

Functions whose last step multiplies or divides have no entry: what they round inside is one more rounding of the result. A
softmax has one, because the exponential of a rounded ``x - max(x)`` is off by as many roundings as that difference is large.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import torch

from precflow.agent.replay.calls import CannotCompute, RecordedCall, parse_argument

_BELOW_ONE = 1 - 2.0**-12  # its last place is that of the numbers from a half to 1


class _NamedArguments:
    """The arguments of a call by name, whether they were given by name or by position.

    Args:
        call: The call.
        tensors: Its input tensors in float64, by path.
        names: Names of the operator's parameters, in order.
    """

    def __init__(self, call: RecordedCall, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        self._call = call
        self._tensors = tensors
        self._paths = {name: str(place) for place, name in enumerate(names)}

    def tensor(self, name: str) -> Optional[torch.Tensor]:
        """Return a tensor; ``None`` if the call has none."""
        return self._tensors.get(name, self._tensors.get(self._paths[name]))

    def number(self, name: str, usual: float) -> float:
        """Return a number, ``usual`` if the call does not say it.

        Raises:
            CannotCompute: It cannot be read.
        """
        text = self._call.arguments.get(name, self._call.arguments.get(self._paths[name]))
        return usual if text is None else float(parse_argument(text))


def _add_bias(given: _NamedArguments, result: torch.Tensor, shape: Sequence[int]) -> Optional[torch.Tensor]:
    bias = given.tensor("bias")
    if bias is None:
        return None
    added = bias.reshape(list(shape))
    return torch.maximum((result - added).abs(), added.abs())


def _of_layer_norm(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    bias = given.tensor("bias")
    return None if bias is None else _add_bias(given, result, bias.shape)


def _of_channels(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    return _add_bias(given, result, (1, -1) + (1,) * (result.dim() - 2))


def _of_log_softmax(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    """Return what ``x - log(sum(exp(x)))`` is made of; the sum is rounded before its logarithm is taken, which is 0 for 1."""
    values = given.tensor("input")
    return None if values is None else torch.maximum(values.abs(), (values - result).abs()).clamp_(min=_BELOW_ONE)


def _of_softmax(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the result times ``m - x``, the largest less the value: its exponential is off by as much as this is rounded."""
    values, dim = given.tensor("input"), given.number("dim", -1.0)
    if values is None:
        return None
    below = values.amax(int(dim), keepdim=True) - values
    return torch.where(below.isfinite(), result * below.clamp(min=_BELOW_ONE), result)


def _of_gelu(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    """Return half of ``x`` or the share of it that ``1 + erf`` leaves, whichever is larger."""
    values = given.tensor("input")
    return None if values is None else torch.maximum(result.abs(), (values - result).abs())


def _of_one(_: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    """Return 1: a ``tanh`` is ``1 - e`` over ``1 + e``, a ``logsigmoid`` the logarithm of ``1 + e``."""
    return result.abs().clamp_(min=_BELOW_ONE)


def _of_softplus(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    return result.abs().clamp_(min=_BELOW_ONE / given.number("beta", 1.0))


def _of_elu(given: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the constant that is subtracted from the exponential of negative numbers."""
    factor = abs(given.number("alpha", 1.0)) * _BELOW_ONE
    return torch.where(result < 0, result.abs().clamp(min=factor), result.abs())


def _of_selu(_: _NamedArguments, result: torch.Tensor) -> Optional[torch.Tensor]:
    return torch.where(result < 0, result.abs().clamp(min=1.7580993408473766), result.abs())  # its scale times its alpha


_LAYER = "input normalized_shape weight bias eps"
_FUNCTIONS: Dict[str, Any] = {
    "layer_norm": (_of_layer_norm, _LAYER),
    "native_layer_norm": (_of_layer_norm, _LAYER),
    "npu_layer_norm_eval": (_of_layer_norm, _LAYER),
    "group_norm": (_of_channels, "input num_groups weight bias eps"),
    "native_group_norm": (_of_channels, "input weight bias N C HxW group eps"),
    "batch_norm": (_of_channels, "input running_mean running_var weight bias training momentum eps"),
    "instance_norm": (_of_channels, "input running_mean running_var weight bias use_input_stats momentum eps"),
    "native_batch_norm": (_of_channels, "input weight bias running_mean running_var training momentum eps"),
    "cudnn_batch_norm": (_of_channels, "input weight bias running_mean running_var training momentum eps"),
    "miopen_batch_norm": (_of_channels, "input weight bias running_mean running_var training momentum eps"),
    "softmax": (_of_softmax, "input dim"),
    "log_softmax": (_of_log_softmax, "input dim"),
    "gelu": (_of_gelu, "input approximate"),
    "npu_gelu": (_of_gelu, "input approximate"),
    "tanh": (_of_one, "input"),
    "log_sigmoid": (_of_one, "input"),
    "log_sigmoid_forward": (_of_one, "input"),
    "softplus": (_of_softplus, "input beta threshold"),
    "elu": (_of_elu, "input alpha"),
    "celu": (_of_elu, "input alpha"),
    "selu": (_of_selu, "input"),
}
_PLACES = ("0", "")  # of the result among the outputs
Compute = Callable[[_NamedArguments, torch.Tensor], Optional[torch.Tensor]]


def find_inner_terms(
    call: RecordedCall, tensors: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor]
) -> Dict[str, torch.Tensor]:
    """Return the largest term inside of each element of a call's first result, by path; empty if the operator has none.

    Args:
        call: The call.
        tensors: Its inputs in float64, by path.
        results: What it gives in float64, by path.
    """
    found = _FUNCTIONS.get(call.operator.rstrip("_"))
    index = next((place for place in results if place in _PLACES), None)
    if found is None or index is None:
        return {}
    compute, names = found
    result = results[index]
    try:
        inner = compute(_NamedArguments(call, tensors, names.split()), result)
    except (CannotCompute, RuntimeError, TypeError, ValueError):  # arguments of another operator of this name
        return {}
    return {} if inner is None or inner.shape != result.shape else {index: inner}

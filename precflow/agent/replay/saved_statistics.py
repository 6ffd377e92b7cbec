"""The gradient of a norm as torch computes it where the forward keeps mean and deviation in 16 bits.

In a model that is in 16 bits as a whole, ``native_group_norm`` and the like hand their backward a mean and an inverse deviation
that are rounded to the type of the input, in some kernels; others keep them in float32. All of a row's gradients are multiplied
by the one inverse deviation::

    kept in float32    1.73156     gradients right to their own rounding
    kept in bfloat16   1.734375    all gradients of the row 0.16 % larger

Both are correct, and of few rows (groups of a small batch) the second looks like a wrong scale.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Tuple, TypeVar

import torch

from precflow.agent.replay import numbers

_T = TypeVar("_T")
_COARSE = (torch.float16, torch.bfloat16)


class _Arguments(NamedTuple):
    """Where a norm has its arguments: place and name."""

    weight: Tuple[int, str]
    bias: Tuple[int, str]
    eps: Tuple[int, str]


_OF_BATCHES = _Arguments((3, "weight"), (4, "bias"), (7, "eps"))
_NORMS: Mapping[str, _Arguments] = {
    "layer_norm": _Arguments((2, "weight"), (3, "bias"), (4, "eps")),
    "group_norm": _Arguments((2, "weight"), (3, "bias"), (4, "eps")),
    "batch_norm": _OF_BATCHES,
    "instance_norm": _OF_BATCHES,
}
_FROM_INPUT = (5, "training"), (5, "use_input_stats")  # of a norm over batches: its statistics are those of its input


def find_saved_type(name: str, types: Mapping[str, torch.dtype]) -> Optional[torch.dtype]:
    """Return the 16-bit type that a norm may keep its statistics in; ``None`` for what is no norm, or keeps them in float32.

    Args:
        name: The function.
        types: Types of its tensors, by path.

    >>> find_saved_type("group_norm", {"0": torch.float16, "weight": torch.float16})
    torch.float16
    >>> find_saved_type("group_norm", {"0": torch.float16, "weight": torch.float32}) is None
    True
    """
    if name not in _NORMS:
        return None
    of_input, of_weight = _take(types, 0, "input"), _take(types, *_NORMS[name].weight)
    return of_input if of_input in _COARSE and of_weight in {of_input, None} else None


def run_with_saved(
    name: str, find: Callable[..., Any], leaves: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> Optional[torch.Tensor]:
    """Return the output of a norm with a graph whose gradients are those at rounded statistics.

    Args:
        name: ``layer_norm``, ``group_norm``, ``batch_norm`` or ``instance_norm``.
        find: Return an argument that is no tensor, by place, name and what it is if it was not given.
        leaves: The tensors in float64, by path.
        dtype: What the statistics are kept in.

    Returns:
        The output; ``None`` where the statistics are not those of the input.
    """
    known = _NORMS[name]
    values, weight, bias = (_take(leaves, *where) for where in ((0, "input"), known.weight, known.bias))
    assert values is not None
    if known is _OF_BATCHES and not find(*_FROM_INPUT[name == "instance_norm"], name == "instance_norm"):
        return None
    rows, axes, lines = _arrange(name, values, find)
    arranged = values.reshape(rows)
    still = arranged.detach()
    mean = _round(still.mean(axes, keepdim=True), dtype)
    variance = still.var(axes, unbiased=False, keepdim=True)
    inverse = _round((variance + find(*known.eps, 1e-5)).rsqrt(), dtype)
    normalized = (still - mean) * inverse
    change = arranged - still
    along = (normalized * change).mean(axes, keepdim=True)
    made = (normalized + inverse * (change - change.mean(axes, keepdim=True) - normalized * along)).reshape(values.shape)
    if weight is not None:
        made = made * weight.reshape(lines)
    return made if bias is None else made + bias.reshape(lines)


def _take(given: Mapping[str, _T], place: int, name: str) -> Optional[_T]:
    """Return what belongs to a tensor among the arguments, which was given by its place or its name."""
    return given.get(str(place), given.get(name))


def _arrange(
    name: str, values: torch.Tensor, find: Callable[..., Any]
) -> Tuple[Tuple[int, ...], Tuple[int, ...], Tuple[int, ...]]:
    """Return the shape whose axes are normalised, these axes, and the shape of weight and bias beside the output."""
    shape = tuple(values.shape)
    if name == "layer_norm":
        of = find(1, "normalized_shape", shape[-1:])
        count = len(of) if isinstance(of, (tuple, list)) else 1
        return shape, tuple(range(-count, 0)), shape[-count:]
    lines = (1, shape[1], *[1] * (len(shape) - 2))
    if name == "group_norm":
        return (shape[0], find(1, "num_groups", 1), -1), (-1,), lines
    others = tuple(range(2, len(shape)))
    return shape, others if name == "instance_norm" else (0, *others), lines


def _round(statistic: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return numbers.round_once(statistic.contiguous(), dtype)

"""A norm by another formula: without weight or bias, not centred, over other groups, or with another divisor."""

from __future__ import annotations

import functools
import math
from typing import Iterator, Optional

import torch

from precflow.agent.hypotheses.arguments import CallArguments
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject

_AFFINE = frozenset("layer_norm rms_norm group_norm".split())  # with weight and bias at the same places


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the norm by its other formulas."""
    x = subject.tensor(0, "input")
    if x is None:
        return
    if subject.name in _AFFINE:
        yield from _change_affine(subject)
    if subject.name == "group_norm":
        groups = int(subject.value(1, "num_groups", 1))
        for other in sorted({groups // 2, groups * 2, 1, x.shape[1]} - {0, groups}):
            if x.shape[1] % other == 0:
                call = CallArguments(subject.call).replaced("num_groups", 1, other)
                yield Candidate("other_groups", subject.give(functools.partial(subject.compute, call=call)))
    elif subject.name == "layer_norm":
        yield Candidate("not_centred", subject.give(_leave_mean(subject, x)))
        yield _divide_by_one_less(subject, x.shape[-1], subject.tensor(3, "bias"))
    elif subject.name == "batch_norm" and subject.value(5, "training", default=False):
        bias = subject.tensor(4, "bias")
        channels = None if bias is None else bias.reshape([-1] + [1] * (x.dim() - 2))
        if x.numel() > x.shape[1]:
            yield _divide_by_one_less(subject, x.numel() // x.shape[1], channels)


def _change_affine(subject: Subject) -> Iterator[Candidate]:
    weight, bias = subject.path(2, "weight"), subject.path(3, "bias")
    for name, paths in (("no_weight", [weight]), ("no_bias", [bias]), ("no_weight_and_bias", [weight, bias])):
        gone = [path for path in paths if path is not None]
        if len(gone) == len(paths):
            yield Candidate(name, subject.give(functools.partial(subject.compute_without, *gone)))
    if weight is not None:
        more = {weight: subject.inputs[weight] + 1.0}
        yield Candidate("weight_plus_one", subject.give(functools.partial(subject.compute, more)))


def _leave_mean(subject: Subject, x: torch.Tensor) -> torch.Tensor:
    """Return the values over the root of the mean of their squares, with the weight and without the bias."""
    shape, weight = subject.value(1, "normalized_shape", (1,)), subject.tensor(2, "weight")
    axes = list(range(-len(shape), 0))
    scaled = x * (x.square().mean(axes, keepdim=True) + float(subject.value(4, "eps", 1e-5))).rsqrt()
    return scaled if weight is None else scaled * weight


def _divide_by_one_less(subject: Subject, count: int, bias: Optional[torch.Tensor]) -> Candidate:
    """Return the norm whose variance is n / (n - 1) times as large; the epsilon is too small to matter here."""
    factor = math.sqrt((count - 1) / count)
    plain = subject.right if bias is None else subject.right - bias
    return Candidate("unbiased_variance", subject.give(plain * factor if bias is None else plain * factor + bias))


HYPOTHESIS = Hypothesis("variant", propose)

"""Another slope below zero of a ``prelu`` or ``leaky_relu``, fitted by least squares: one for each weight."""

from __future__ import annotations

from typing import Iterator

import torch

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject

_FEWEST = 8  # elements for each slope
_NEAR, _SMALL = 0.01, 1e-6  # relative and absolute distance of slopes that are the same, but for the error of fitting them


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the function with the slopes that fit."""
    x, weight = subject.tensor(0, "input"), subject.tensor(1, "weight")
    if subject.name == "leaky_relu":
        weight = torch.tensor([float(subject.value(1, "negative_slope", 0.01))])
    elif subject.name != "prelu":
        return
    if x is None or weight is None or not subject.made.isfinite().all():
        return
    weights = weight.reshape(-1)
    axis = 1 if x.dim() > 1 and len(weights) > 1 else None  # channels stand in the second axis
    if x.numel() < _FEWEST * len(weights) or (axis is not None and x.shape[axis] != len(weights)):
        return
    low = x.clamp(max=0.0)
    others = [other for other in range(x.dim()) if other != axis]
    energy, product = ((low * each).sum(others, keepdim=True) for each in (low, subject.made))
    right = weights.reshape([-1 if other == axis else 1 for other in range(x.dim())])
    slopes = torch.where(energy > 0.0, product / energy, right)
    text = describe_slopes(slopes.reshape(-1), weights)
    yield Candidate("other_slope", subject.give(x.clamp(min=0.0) + slopes * low), text, is_fitted=True)


def describe_slopes(slopes: torch.Tensor, right: torch.Tensor) -> str:
    """Say how slopes come from the right ones, or what they are.

    >>> describe_slopes(torch.tensor([-0.25]), torch.tensor([0.25])), describe_slopes(torch.tensor([0.01]), torch.tensor([0.1]))
    ('the negative of what it should be', '0.01')
    >>> describe_slopes(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([0.1, 0.2, 0.3]))
    'those of other channels'
    """
    if torch.allclose(slopes, -right, rtol=_NEAR, atol=_SMALL):
        return "the negative of what it should be"
    if len(slopes) == 1:
        return "%.3g" % float(slopes)
    same = torch.allclose(slopes.sort().values, right.sort().values, rtol=_NEAR, atol=_SMALL)
    return "those of other channels" if same else "%.3g to %.3g" % (float(slopes.min()), float(slopes.max()))


HYPOTHESIS = Hypothesis("variant", propose)

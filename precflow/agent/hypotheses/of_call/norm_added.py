"""A sum with a norm of one addend in its place, with the weight and bias of that norm where the rows tell them."""

from __future__ import annotations

from typing import Iterator

import torch

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject

_FEW = 8  # elements of a row
_EPSILONS = (1e-5, 1e-6)  # of norms, as models have them
_ROWS = 16  # from which on the factor and the offset of a column are told
_FAR_BETTER = 0.01  # what a norm leaves of the error, over what the same fit leaves without it


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the sum with a norm of either addend."""
    first, second = subject.tensor(0, "input"), subject.tensor(1, "other")
    if subject.name != "add" or "alpha" in subject.call.arguments or first is None or second is None:
        return
    for place, addend, other in (("first", first, second), ("second", second, first)):
        yield from _normalise(subject, place, addend, other)


def _normalise(subject: Subject, place: str, addend: torch.Tensor, other: torch.Tensor) -> Iterator[Candidate]:
    made = subject.made
    if addend.shape != made.shape or addend.dim() < 2 or addend.shape[-1] < _FEW or not made.isfinite().all():
        return
    rows = addend.reshape(-1, addend.shape[-1])
    rest = (made - other).reshape(rows.shape)
    for kind, centred in (("layer_norm", rows - rows.mean(1, keepdim=True)), ("rms_norm", rows)):
        text = "%s of its %s" % (kind, place)
        variance = centred.square().mean(1, keepdim=True)
        if not variance.all():  # a row of zeros, of which a norm is all epsilon
            continue
        normed = centred
        for epsilon in _EPSILONS:
            normed = centred / (variance + epsilon).sqrt()
            yield Candidate("norm_added", subject.give(normed.reshape(addend.shape) + other), text)
        if len(rows) < _ROWS:
            continue
        fitted, plain = (_fit_columns(each, rest) for each in (normed, rows))
        # Rows of equal norm are normalised already: their own multiples fit as well, and prove no norm.
        if (rest - fitted).square().sum() <= _FAR_BETTER * (rest - plain).square().sum():
            yield Candidate("norm_added", subject.give(fitted.reshape(addend.shape) + other), text, is_fitted=True)


def _fit_columns(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the nearest to a target that one factor and one offset for each column make of values."""
    centred, offset = values - values.mean(0), target.mean(0)
    energy = centred.square().sum(0)
    slope = torch.where(energy > 0.0, (centred * (target - offset)).sum(0) / energy, torch.zeros_like(energy))
    return centred * slope + offset


HYPOTHESIS = Hypothesis("variant", propose)

"""A softmax over another axis, over fewer keys, or one that gives all of them the same weight."""

from __future__ import annotations

import functools
from typing import Iterator

import torch

from precflow.agent.hypotheses.arguments import CallArguments
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the softmax in its other forms."""
    scores = subject.tensor(0, "input")
    if subject.name != "softmax" or scores is None:
        return
    axis = int(subject.value(1, "dim", -1))
    yield Candidate("uniform", subject.give(torch.full_like(subject.right, 1.0 / scores.shape[axis])))
    for other in range(scores.dim()):
        if other != axis % scores.dim():
            call = CallArguments(subject.call).replaced("dim", 1, other)
            yield Candidate("other_axis", subject.give(functools.partial(subject.compute, call=call)))
    zero = (subject.made == 0.0).all(dim=0) if scores.dim() == 1 else (subject.made == 0.0).flatten(0, -2).all(dim=0)
    count = 0 if zero.all() else int(zero.flip(0).to(torch.int8).argmin())
    if count:
        left = scores[..., :-count].softmax(-1)
        rest = torch.zeros(*scores.shape[:-1], count, dtype=left.dtype)
        yield Candidate("last_keys_ignored", subject.give(torch.cat([left, rest], dim=-1)))


HYPOTHESIS = Hypothesis("variant", propose)

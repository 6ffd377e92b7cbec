"""Gradients that leave a function with a factor, which is fitted."""

from __future__ import annotations

import functools
from typing import Iterator

import torch

from precflow.agent.hypotheses.backward import Backward
from precflow.agent.hypotheses.subject import Candidate, Hypothesis


def propose(subject: Backward) -> Iterator[Candidate]:
    """Yield the backward with a factor at each place."""
    for place in subject.places():
        factor = subject.fit_factor(place)
        if factor is not None:
            yield subject.change("scaled", place, functools.partial(torch.mul, factor), factor)


HYPOTHESIS = Hypothesis("backward", propose)

"""Gradients that are rounded to a type of 16 bits where they leave a function."""

from __future__ import annotations

import functools
from typing import Iterator

from precflow.agent.hypotheses.backward import Backward
from precflow.agent.hypotheses.narrow import TYPES, round_to
from precflow.agent.hypotheses.subject import Candidate, Hypothesis


def propose(subject: Backward) -> Iterator[Candidate]:
    """Yield the backward with what leaves at each place rounded to each type that it does not have anyway."""
    for place in subject.places():
        for name, dtype in TYPES:
            if any(subject.dtype(place.function, path) != dtype for path in subject.paths(place.function)):
                yield subject.change(name, place, functools.partial(round_to, dtype=dtype))


HYPOTHESIS = Hypothesis("backward", propose)

"""A call whose inputs were rounded to a type of 16 bits, with a result of that type and without."""

from __future__ import annotations

import functools
from typing import Dict, Iterator

import torch

from precflow.agent.hypotheses.narrow import TYPES, round_to
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the call at inputs of each type."""
    for name, dtype in TYPES:
        narrow = {
            path: round_to(value, dtype) if value.is_floating_point() else value for path, value in subject.inputs.items()
        }
        yield Candidate("inputs_in_" + name, subject.give(functools.partial(subject.compute, narrow)))
        # Inputs of that type already: only the rounding of the result would be explained, which is right in that type.
        if any(not torch.equal(value.nan_to_num(), subject.inputs[path].nan_to_num()) for path, value in narrow.items()):
            yield Candidate("inputs_in_" + name, subject.give(functools.partial(_round_result, subject, narrow, dtype)))


def _round_result(subject: Subject, inputs: Dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return round_to(subject.compute(inputs), dtype)


HYPOTHESIS = Hypothesis("variant", propose)

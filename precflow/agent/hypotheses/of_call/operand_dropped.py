"""One operand alone in place of a sum or a product of two, or a linear layer without its bias."""

from __future__ import annotations

import functools
from typing import Iterator

import torch

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject
from precflow.agent.replay.calls import CannotCompute

_OF_TWO = frozenset("add sub mul div".split())


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield what is left without one operand."""
    bias = subject.path(2, "bias")
    if subject.name == "linear" and bias is not None:
        yield Candidate("no_bias", subject.give(functools.partial(subject.compute_without, bias)))
    if subject.name not in _OF_TWO:
        return
    for name, place, argument in (("only_first", 0, "input"), ("only_second", 1, "other")):
        yield Candidate(name, subject.give(functools.partial(_read, subject, place, argument)))


def _read(subject: Subject, place: int, argument: str) -> torch.Tensor:
    """Return an operand in the shape of the result; it may be a number.

    Raises:
        CannotCompute: It is neither.
    """
    value = subject.tensor(place, argument)
    if value is None:
        number = subject.value(place, argument, None)
        if not isinstance(number, (int, float)):
            raise CannotCompute("it has no such operand")
        value = torch.tensor(float(number))
    return value.expand(torch.broadcast_shapes(value.shape, subject.right.shape)).contiguous()


HYPOTHESIS = Hypothesis("variant", propose)

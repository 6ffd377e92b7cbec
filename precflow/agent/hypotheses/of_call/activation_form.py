"""An activation in another form: the other GELU, or straight lines in place of a curve."""

from __future__ import annotations

from typing import Iterator

import torch
from torch.nn import functional

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the other forms of the function."""
    x = subject.tensor(0, "input")
    if x is None:
        return
    if subject.name == "gelu":
        is_tanh = subject.value(1, "approximate", "none") == "tanh"
        name, form = ("gelu_erf", "none") if is_tanh else ("gelu_tanh", "tanh")
        yield Candidate(name, subject.give(functional.gelu(x, approximate=form)))
        yield Candidate("gelu_sigmoid", subject.give(x * torch.sigmoid(1.702 * x)))
    elif subject.name == "silu":
        yield Candidate("straight_lines", subject.give(functional.hardswish(x)))
    elif subject.name == "sigmoid":
        yield Candidate("straight_lines", subject.give(functional.hardsigmoid(x)))


HYPOTHESIS = Hypothesis("variant", propose)

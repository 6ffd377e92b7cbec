"""Another form of a function's backward, each written out: the derivative of an approximation, or one that lacks a term.

A hand-written backward is often that of a near relative: GELU's exact form with the derivative of its tanh form, a softmax
without the sum over its row. Each form takes input, output and arriving gradient of a function of one tensor, in float64.

To add one, add a row to ``FORMS``: the function's canonical name, and by name how the gradient leaves.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, Iterator

import torch
from torch.nn import functional

from precflow.agent.hypotheses.backward import Backward, Leave
from precflow.agent.hypotheses.subject import Candidate, Hypothesis


def propose(subject: Backward) -> Iterator[Candidate]:
    """Yield the backward with each other form of one function."""
    for number in subject.functions_of_one():
        for name, leave in FORMS.get(subject.functions[number].name, {}).items():
            yield subject.leave("form_" + name, number, leave)


def _derive(function: Callable[[torch.Tensor], torch.Tensor]) -> Leave:
    """Return the backward of another function at the same input."""

    def leave(values: torch.Tensor, _: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient that leaves."""
        with torch.enable_grad():
            leaf = values.detach().clone().requires_grad_()
            (leaving,) = torch.autograd.grad(function(leaf), leaf, gradient)
        return leaving

    return leave


FORMS: Dict[str, Dict[str, Leave]] = {
    "gelu": {
        "gelu_tanh": _derive(functools.partial(functional.gelu, approximate="tanh")),
        "gelu_erf": _derive(functional.gelu),
        "gelu_sigmoid": _derive(lambda x: x * torch.sigmoid(1.702 * x)),
    },
    "silu": {
        "without_slope_of_sigmoid": lambda x, _, gradient: gradient * torch.sigmoid(x),
        "straight_lines": _derive(functional.hardswish),
    },
    "softmax": {
        "without_sum_of_row": lambda _, output, gradient: output * gradient,
        "diagonal": lambda _, output, gradient: output * (1 - output) * gradient,
    },
    "log_softmax": {
        "without_sum_of_row": lambda _, __, gradient: gradient,
    },
    "sigmoid": {"straight_lines": _derive(functional.hardsigmoid)},
    "tanh": {"straight_lines": _derive(functional.hardtanh), "without_square": lambda _, y, gradient: gradient * (1 - y.abs())},
}
"""Function -> name of a form -> how the gradient of its one input leaves."""

HYPOTHESIS = Hypothesis("backward", propose)

"""A product of matrices whose operands have fewer bits: TF32 keeps 10 of the significand of a float32, HF32 11, bfloat16 7.

An error of the right size proves nothing: many faults are as large. But if the product of rounded operands gives the target's
output, and that of whole ones does not, no other cause is left.
"""

from __future__ import annotations

import functools
import itertools
from typing import Dict, FrozenSet, Iterator

import torch

from precflow.agent.hypotheses.narrow import BITS, cut
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject
from precflow.agent.replay import operators

_BIAS = frozenset({"2", "bias"})
# What is added to a product is an operand of some kernels, which round it, and added behind it by others, which do not.
_ADDENDS = dict.fromkeys(("addmm", "baddbmm"), frozenset({"0", "input"}))
_FEWEST = 16  # sums; one is near some way to shorten its operands by chance


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the product of operands of each number of bits, rounded to nearest or towards zero."""
    is_product = operators.kind_of(subject.call) == operators.MATMUL and operators.adds_terms(subject.call)
    if not is_product or subject.right.numel() < _FEWEST:
        return
    addends = _ADDENDS.get(subject.name, _BIAS) & subject.inputs.keys()
    for bits in BITS:
        name = "operands_%d" % bits
        for truncate, kept in itertools.product((False, True), (addends, frozenset()) if addends else (addends,)):
            shortened = _shorten(subject, bits, kept, truncate=truncate)
            yield Candidate(name, subject.give(functools.partial(subject.compute, shortened)))
            # Autocast rounds the result too. Of operands that are as short already that is right, and explains nothing.
            if any(not torch.equal(shortened[path], subject.inputs[path]) for path in subject.inputs.keys() - addends):
                yield Candidate(name, subject.give(functools.partial(_cut_result, subject, shortened, bits)))


def _shorten(subject: Subject, bits: int, kept: FrozenSet[str], *, truncate: bool) -> Dict[str, torch.Tensor]:
    return {
        path: cut(value, bits, truncate=truncate) if value.is_floating_point() and path not in kept else value
        for path, value in subject.inputs.items()
    }


def _cut_result(subject: Subject, inputs: Dict[str, torch.Tensor], bits: int) -> torch.Tensor:
    return cut(subject.compute(inputs), bits)


HYPOTHESIS = Hypothesis("operands", propose)

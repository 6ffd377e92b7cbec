"""Products of matrices in the backward whose operands have fewer bits, as TF32 or HF32 leave them."""

from __future__ import annotations

from typing import Iterator

from precflow.agent.hypotheses.backward import Backward
from precflow.agent.hypotheses.narrow import BITS
from precflow.agent.hypotheses.subject import Candidate, Hypothesis


def propose(subject: Backward) -> Iterator[Candidate]:
    """Yield the backward with one product of operands of each number of bits, rounded to nearest or towards zero."""
    for number in subject.products():
        for bits in BITS:
            for truncate in (False, True):
                yield subject.cut("operands_%d" % bits, number, bits, truncate=truncate)


HYPOTHESIS = Hypothesis("backward", propose)

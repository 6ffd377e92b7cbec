"""A product of matrices that reads an operand in the order of its memory, as if it were no view.

What a dump has of a tensor does not tell how it lay in memory, so each order of its axes is tried on a few rows or columns.
"""

from __future__ import annotations

import itertools
import math
from typing import Iterator, Optional, Sequence

import torch

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject

_SAMPLE = 4  # rows or columns with which orders are told apart
_AXES = 4  # of an operand, up to which every order of its memory is tried
_LARGE = 1 << 20  # elements of an operand from which on only its last two axes are exchanged


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the product with each operand read in the order that fits best."""
    matrices = subject.matrices()
    if matrices is None:
        return
    left, right = matrices
    shape = subject.right.shape
    if subject.name == "linear":
        if right.shape[0] == right.shape[1]:
            change = left @ right.T - left @ right  # the bias stays
            yield Candidate("transposed", subject.give(subject.right + change))
        return
    made = subject.made.reshape(*left.shape[:-1], right.shape[-1]) if right.dim() == 2 else subject.made
    if min(left.dim(), right.dim()) < 2 or not made.isfinite().all():
        return
    for place, operand in ((1, right), (0, left)):
        read = _find_order(operand, place, left, right, made)
        if read is not None:
            product = left @ read if place else read @ right
            yield Candidate("memory_order", subject.give(product.reshape(shape)), "second" if place else "first")


def _find_order(
    operand: torch.Tensor, place: int, left: torch.Tensor, right: torch.Tensor, made: torch.Tensor
) -> Optional[torch.Tensor]:
    """Return the operand as it is read in the order that gives a few rows, or columns, of the product best."""
    best, least = None, math.inf
    for order in _list_orders(operand):
        read = operand.permute(*order).reshape(operand.shape)
        if place:
            error = left[..., :_SAMPLE, :] @ read - made[..., :_SAMPLE, :]
        else:
            error = read @ right[..., :_SAMPLE] - made[..., :_SAMPLE]
        energy = float(error.square().sum())
        if energy < least:
            best, least = read, energy
    return best


def _list_orders(operand: torch.Tensor) -> Iterator[Sequence[int]]:
    plain = tuple(range(operand.dim()))
    if operand.dim() <= _AXES and operand.numel() <= _LARGE:
        yield from (order for order in itertools.permutations(plain) if order != plain)
    else:
        yield (*plain[:-2], plain[-1], plain[-2])


HYPOTHESIS = Hypothesis("variant", propose)

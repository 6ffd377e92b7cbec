"""Positions that are counted from another number, and rows of a table that stand a few places further."""

from __future__ import annotations

import math
from typing import Iterator

import torch

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject

_LINEAR = frozenset("linear matmul bmm mm mul add sub outer einsum".split())  # in each of their operands
_SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)  # rows: positions counted from another start, or an offset for padding
_OUTSIDE = 0.5  # share of the rows of a table that may lie beyond its end once they are shifted


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the result for shifted positions, or rows."""
    if subject.name in _LINEAR:
        yield from _shift_positions(subject)
    elif subject.name == "embedding":
        yield from _shift_rows(subject)


def _shift_positions(subject: Subject) -> Iterator[Candidate]:
    """Yield the output for positions that are counted from another number.

    Positions are an operand of whole numbers that go up by one along an axis. The operator is linear in each operand, so the
    step of one position tells how many fit.
    """
    for path, positions in subject.inputs.items():
        if not counts_up(positions):
            continue
        step = subject.compute({path: positions + 1}) - subject.right
        energy, product = float(step.square().sum()), float((step * (subject.made - subject.right)).sum())
        shift = round(product / energy) if energy > 0.0 and math.isfinite(product) else 0
        if shift:
            yield Candidate("positions_shifted", subject.give(subject.right + shift * step), "by %d" % shift)


def counts_up(values: torch.Tensor) -> bool:
    """Tell whether values are whole numbers that go up by one along an axis of three or more.

    >>> counts_up(torch.arange(5.0)[:, None]), counts_up(torch.tensor([[1, 5, 7]]))
    (True, False)
    """
    if values.is_complex() or values.dtype == torch.bool:
        return False
    if values.is_floating_point() and not bool((values.isfinite() & (values == values.round())).all()):
        return False
    return any(size > 2 and bool((values.diff(dim=axis) == 1).all()) for axis, size in enumerate(values.shape))


def _shift_rows(subject: Subject) -> Iterator[Candidate]:
    """Yield the rows that stand a few places further in the table.

    If several rows were asked for, several have to be read: one row for all is what ids that are all zero read, too.
    """
    rows, table = subject.tensor(0, "input"), subject.tensor(1, "weight")
    if rows is None or table is None:
        return
    fewest = min(2, len(rows.unique()))
    for shift in _SHIFTS:
        shifted = rows + shift
        outside = (shifted < 0) | (shifted >= len(table))  # what is read there depends on the kernel
        if float(outside.double().mean()) >= _OUTSIDE or len(shifted[~outside].unique()) < fewest:
            continue
        values = table[shifted.clamp(0, len(table) - 1)]
        if values.shape == subject.made.shape:
            values[outside] = subject.made[outside]
            yield Candidate("rows_shifted", subject.give(values), "by %d" % shift)


HYPOTHESIS = Hypothesis("variant", propose)

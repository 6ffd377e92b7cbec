"""One number that explains a whole difference: the target is a constant factor, or a constant amount, from the reference.

A loss that is divided by another number (micro batches, ranks, tokens), or that has a further term, differs so at every step.
The number is the median over the steps, so that single steps do not move it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precflow.curves.series import Values

FEWEST = 5
"""Steps from which on a relation is looked for: two numbers always have one."""
_LEFT = 0.1  # of the difference, root mean square, may be left: rounding of the log, and what the training adds
_LEFT_ANYWHERE = 0.5  # of the difference of a single step
_CLEARER = 3.0  # times as much has to be left by the other relation, where both explain the difference
_NOTHING = 1e-6  # of the difference: rounding of its subtraction
_LARGEST_INTEGER = 65536


@dataclass(frozen=True)
class Relation:
    """How the target follows from the reference at every step.

    Attributes:
        kind: ``factor`` (target = number x reference), ``offset`` (target = reference + number), or ``""`` for neither.
        number: The factor or the amount.
        left: Share of the difference that it leaves unexplained, by root mean square.
        integer: The whole number n that a factor is, or that its inverse is: the factor is n or 1/n; 0 if it is neither.
    """

    kind: str = ""
    number: float = 0.0
    left: float = 1.0
    integer: int = 0

    @property
    def words(self) -> str:
        """What the target is of the reference, such as ``2.000 times``; four digits, because logs seldom hold more.

        >>> Relation("factor", 2.00049).words, Relation("offset", -0.5).words
        ('2.000 times', '0.5000 below')
        """
        if self.kind == "factor":
            return f"{self.number:#.4g} times"
        return f"{abs(self.number):#.4g} {'above' if self.number > 0 else 'below'}" if self.kind else ""


def find_relation(reference: Values, target: Values) -> Relation:
    """Find the constant factor or amount that explains a difference.

    Args:
        reference: Finite, one number a step.
        target: The same.

    >>> reference = np.array([8.0, 6.0, 5.0, 4.5, 4.25])
    >>> find_relation(reference, 2 * reference).integer, find_relation(reference, reference + 0.5).kind
    (2, 'offset')
    """
    difference = target - reference
    if len(difference) < FEWEST or not difference.any():
        return Relation()
    inside = reference != 0
    factor = float(np.median(target[inside] / reference[inside])) if inside.any() else 0.0
    amount = float(np.median(difference))
    by_kind = {"factor": target - factor * reference, "offset": difference - amount}
    left = {kind: _measure_left(rest, difference) for kind, rest in by_kind.items()}
    kind = min(left, key=lambda kind: left[kind])
    other = max(left.values())
    # On a plateau both explain the difference equally well: nothing is said then.
    if left[kind] > _LEFT or other <= _CLEARER * left[kind] + _NOTHING:
        return Relation()
    number = factor if kind == "factor" else amount
    return Relation(kind, number, left[kind], _find_integer(factor, left[kind]) if kind == "factor" else 0)


def _measure_left(rest: Values, difference: Values) -> float:
    """Return the share of a difference that is left; infinite where a step is not explained at all."""
    scale = float(np.abs(difference).max())
    if bool((np.abs(rest) > _LEFT_ANYWHERE * np.abs(difference)).any()):
        return float("inf")
    return float(np.sqrt(np.mean((rest / scale) ** 2)) / np.sqrt(np.mean((difference / scale) ** 2)))


def _find_integer(factor: float, left: float) -> int:
    """Return the whole number that a factor or its inverse is, as closely as the rest allows to tell; 0 if neither is one."""
    for number in (factor, 1 / factor if factor else 0.0):
        nearest = round(number) if abs(number) <= _LARGEST_INTEGER else 0
        if nearest >= 2 and abs(number - nearest) <= max(left, 1e-3) * abs(number - 1):
            return nearest
    return 0

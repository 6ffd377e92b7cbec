"""How the difference of two curves grows: like the root of the step, which is noise, like the step, a bias, or not at all.

Rounding that errs to either side with every step adds up like a random walk, whose size grows like the square root of the step.
An error that always points the same way adds up like the step itself (Higham and Mary, arXiv 2404.12556, for sums of rounding
errors). One curve is a single such walk, and a walk may look like a line for a while: the line is believed only where chance
would have made it once in a hundred walks.

The difference d is cut into at most 20 parts of L steps. With the means m_k of the parts and their changes D_k = m_k+1 - m_k:

    bias      the mean of D_k is not 0, by Student's t. Neighbouring D_k of a walk are correlated by 1/4, which makes the error
              of their mean larger by the square root of 3/2.
    noise     m_k changes less from part to part than m_k spreads: von Neumann's ratio of sum D_k^2 to sum (m_k - mean)^2, which
              is 2 for a difference that fluctuates around one value.
    faster    the exponent p of |d| ~ step^p is above 1.5: neither explains it.
    shrinks   the exponent is below -0.4, or the line of a bias leads towards 0: nothing grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from precflow.curves.series import Steps, Values

FEWEST = 30
"""Steps from which on anything is said about growth."""
KINDS = ("none", "steady", "noise", "bias", "faster", "shrinks", "unknown")
_PARTS = 20
_FASTER = 1.5  # an exponent that a walk of 30 steps or more reaches once in a hundred times at most
_SHRINKS = -0.4  # an exponent that a walk of 60 steps or more falls below once in a hundred times at most
_SURE, _DOUBTFUL = 0.01, 0.05
_WIDER = math.sqrt(1.5)
_OFFSET = 1e-6  # of the difference: what varies less is rounding of the logged numbers, as where 0.1 was added to each


@dataclass(frozen=True)
class Growth:
    """How a difference grows.

    Attributes:
        kind: ``none`` (no difference), ``steady`` (it fluctuates and does not grow), ``noise`` (like the square root of the
            step), ``bias`` (like the step), ``faster`` than the step, ``shrinks``, or ``unknown``.
        steps: Steps that it was made of.
        per_step: How much the difference changes with a step, on average.
        per_step_uncertainty: Standard error of that.
        chance: How often a walk without bias would show so large a change; 1 if nothing can be said.
        per_root_step: Size of the walk: it is this times the square root of the step.
        exponent: Of the step, fitted to the size of the difference.
        noise_fit: Share of the spread of the sizes that a multiple of the square root of the step explains, at most 1; negative
            if a constant would explain more.
        bias_fit: The same for a multiple of the step.
    """

    kind: str = "unknown"
    steps: int = 0
    per_step: float = 0.0
    per_step_uncertainty: float = math.inf
    chance: float = 1.0
    per_root_step: float = 0.0
    exponent: float = 0.0
    noise_fit: float = 0.0
    bias_fit: float = 0.0


def explain_growth(steps: Steps, difference: Values) -> Growth:
    """Explain how a difference grows.

    Args:
        steps: Ascending.
        difference: Target minus reference, finite, one a step.

    >>> steps = np.arange(100)
    >>> explain_growth(steps, 1e-4 * steps + 1e-4 * np.sin(steps)).kind
    'bias'
    >>> explain_growth(steps, np.sin(7.0 * steps)).kind
    'steady'
    """
    count = len(steps)
    if not np.any(difference):
        return Growth(kind="none" if count else "unknown", steps=count)
    if count < FEWEST:
        return Growth(steps=count)
    parts = min(_PARTS, count // 3)
    length = count // parts
    cut = count - parts * length  # of the beginning, which has the smallest part in the growth
    inside = difference[cut:].reshape(parts, length)
    elapsed = (steps[cut:] - steps[0] + 1.0).reshape(parts, length).mean(axis=1)
    # An offset from the first step on is no growth, but a walk begins at 0: it is the first number that tells the two apart.
    means = inside.mean(axis=1)
    changes = np.diff(means)
    distance = float(np.diff(elapsed).mean())
    spread = float(changes.std(ddof=1))
    error = _WIDER * spread / math.sqrt(len(changes))
    mean = float(changes.mean())
    chance = student_probability(mean / error, len(changes) - 1) if error else 0.0 if mean else 1.0
    sizes = np.sqrt((inside**2).mean(axis=1))
    exponent = _fit_exponent(elapsed, sizes)
    walks = _is_walk(means)
    if means.std() < _OFFSET * sizes.max():
        kind = "steady"
    elif exponent < _SHRINKS or (chance < _SURE and mean * means.mean() < 0 and sizes[-1] < sizes[0]):
        kind = "shrinks"
    elif exponent > _FASTER and (walks or chance < _DOUBTFUL):
        kind = "faster"
    elif chance < _SURE:
        kind = "bias"
    elif not walks:
        kind = "steady"
    else:
        # A straight line with noise around it that is too short to be sure of.
        kind = "unknown" if chance < _DOUBTFUL or not _is_walk(_remove_line(elapsed, means)) else "noise"
    return Growth(
        kind=kind,
        steps=count,
        per_step=mean / distance,
        per_step_uncertainty=error / distance,
        chance=chance,
        per_root_step=math.sqrt(float((changes**2).mean()) / (distance * 2 / 3)),
        exponent=exponent,
        noise_fit=_explained(np.sqrt(elapsed), sizes),
        bias_fit=_explained(elapsed, sizes),
    )


def _remove_line(elapsed: Values, means: Values) -> Values:
    x = elapsed - elapsed.mean()
    rest: Values = means - means.mean() - x * float((x * means).sum() / (x * x).sum())
    return rest


def _is_walk(means: Values) -> bool:
    """Tell whether neighbouring parts are nearer to each other than any two, by von Neumann's ratio."""
    changes = np.diff(means)
    around = float(((means - means.mean()) ** 2).sum())
    if not around:
        return False
    count = len(means)
    ratio = float((changes**2).sum()) / around * count / (count - 1)
    expected = 2 * count / (count - 1)
    # Variance of the ratio for independent normal numbers (von Neumann 1941).
    deviation = math.sqrt(4 * count**2 * (count - 2) / ((count + 1) * (count - 1) ** 3))
    return (expected - ratio) / deviation > 2.326  # one in a hundred


def _fit_exponent(elapsed: Values, sizes: Values) -> float:
    present = sizes > 0
    if np.count_nonzero(present) < 3:
        return 0.0
    x, y = np.log(elapsed[present]), np.log(sizes[present])
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def _explained(shape: Values, sizes: Values) -> float:
    """Return the share of the spread of sizes that a multiple of a shape explains."""
    factor = float((shape * sizes).sum() / (shape * shape).sum())
    spread = float(((sizes - sizes.mean()) ** 2).sum())
    return 1 - float(((sizes - factor * shape) ** 2).sum()) / spread if spread else 0.0


def student_probability(t: float, degrees: int) -> float:
    """Return the two-sided probability of Student's t by its finite sums (Abramowitz and Stegun 26.7.3 and 26.7.4).

    >>> round(student_probability(2.262157, 9), 6)
    0.05
    """
    angle = math.atan(abs(t) / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    if degrees % 2:
        term, total = cosine, 0.0 if degrees == 1 else cosine
        for number in range(3, degrees - 1, 2):
            term *= (number - 1) / number * cosine**2
            total += term
        return max(0.0, 1 - 2 / math.pi * (angle + sine * total))
    term = total = 1.0
    for number in range(2, degrees - 1, 2):
        term *= (number - 1) / number * cosine**2
        total += term
    return max(0.0, 1 - sine * total)

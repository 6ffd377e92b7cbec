"""Which epsilon a normalisation really used, from its input and both outputs.

A normalisation gives ``w * (x - mean) / sqrt(var + eps) + b`` for each row. So another epsilon multiplies the part before ``b``
by ``c(row) = sqrt((var + eps) / (var + eps'))``, nearest to 1 in rows with a large variance. ``w`` and ``b`` are not in a dump,
but each column of the reference's own output is a straight line over the normalised input, which gives both.

This is no hypothesis of the agent, which computes a call again with each of a few values: an epsilon may be any number, and a
sample of the rows is enough to fit it, where the call as a whole was not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from precflow.comparison.fused.value_classes import Floats

_ROWS = 4  # a column has two unknowns; with two rows any line would fit
_DECADES = np.linspace(-14.0, 2.0, 321)  # exponents of ten that are tried first
_REST = 1e-3  # share of the error's energy that an epsilon leaves, below which nothing explains it better
_LESS = 0.5  # of what an epsilon leaves: another explanation is better


@dataclass(frozen=True)
class EpsilonFit:
    """The epsilon that explains a target best.

    Attributes:
        epsilon: The fitted value.
        share: Share of the error's energy that it explains, 0 to 1.
    """

    epsilon: float
    share: float


def fit_epsilon(
    values: Floats, reference: Floats, target: Floats, epsilon: float, *, centred: bool = True
) -> EpsilonFit | None:
    """Fit the target's epsilon; ``None`` if nothing differs, a value is not finite, or there are fewer than four rows.

    Args:
        values: Input, ``(rows, features)``; normalised over the features.
        reference: Output of the reference, the same shape.
        target: Output of the target, the same shape.
        epsilon: What the reference added to the variance.
        centred: The mean is subtracted, as in layer_norm; rms_norm does not.
    """
    if len(values) < _ROWS or not np.isfinite(values).all():
        return None
    shifted = values - values.mean(axis=1, keepdims=True) if centred else values
    variance = np.mean(shifted * shifted, axis=1)
    scaled = _scale_by_weight(shifted / np.sqrt(variance + epsilon)[:, None], reference, centred=centred)
    return fit_epsilon_to_variance(variance, scaled, reference, target, epsilon)


def fit_epsilon_to_variance(
    variance: Floats, scaled: Floats, reference: Floats, target: Floats, epsilon: float
) -> EpsilonFit | None:
    """Fit the target's epsilon where the variance of each row is known; ``None`` as :func:`fit_epsilon` does.

    Also ``None`` if one factor for all rows explains the error better: a variance that is counted or scaled otherwise changes
    every row alike, and some epsilon always comes near to that where there are few rows.

    Args:
        variance: Of each row, without epsilon; a batch norm brings that of each channel along.
        scaled: The reference's output without what it adds last, ``(rows, features)``.
        reference: Output of the reference, the same shape.
        target: Output of the target, the same shape.
        epsilon: What the reference added to the variance.
    """
    error = target - reference
    total = float(np.sum(error * error))
    if len(variance) < _ROWS or not np.isfinite(total) or total == 0.0:
        return None
    along, size = np.sum(error * scaled, axis=1), np.sum(scaled * scaled, axis=1)

    def unexplained(decade: float) -> float:
        """Return the energy of the error that an epsilon of ``10 ** decade`` does not explain."""
        growth = np.sqrt((variance + epsilon) / (variance + 10.0**decade)) - 1.0
        return total - float(np.sum(2.0 * growth * along - growth * growth * size))

    best = _find_minimum(unexplained)
    rest, rest_of_factor = unexplained(best), total - float(along.sum()) ** 2 / max(float(size.sum()), np.finfo(float).tiny)
    if rest > _REST * total and rest_of_factor < _LESS * rest:
        return None
    # What has lost the values of the reference is explained by any epsilon that is large enough.
    energy = min(total, float(np.sum(target * target)))
    return EpsilonFit(epsilon=float(10.0**best), share=max(0.0, 1.0 - rest / energy) if energy else 0.0)


def _scale_by_weight(normalised: Floats, reference: Floats, *, centred: bool) -> Floats:
    """Return ``w * normalised``, with ``w`` from a straight line through each column of the reference."""
    inner = normalised - normalised.mean(axis=0) if centred else normalised
    outer = reference - reference.mean(axis=0) if centred else reference
    energy = np.sum(inner * inner, axis=0)
    weight: Floats = np.divide(np.sum(inner * outer, axis=0), energy, out=np.zeros_like(energy), where=energy > 0.0)
    scaled: Floats = normalised * weight
    return scaled


def _find_minimum(energy: Callable[[float], float]) -> float:
    """Return the best exponent: a coarse grid, because there may be several minima, then thirds of the interval around it."""
    best = int(np.argmin([energy(decade) for decade in _DECADES]))
    low, high = _DECADES[max(best - 1, 0)], _DECADES[min(best + 1, len(_DECADES) - 1)]
    for _ in range(40):  # each round leaves two thirds, so that a tenth of a decade shrinks to 1e-8 decades
        third = (high - low) / 3.0
        if energy(low + third) < energy(high - third):
            high -= third
        else:
            low += third
    return float((low + high) / 2.0)

"""Which epsilon a normalisation really used, from its input and both outputs.

A normalisation gives ``w * (x - mean) / sqrt(var + eps) + b`` for each row. Another epsilon therefore multiplies the part
before ``b`` by ``c(row) = sqrt((var + eps) / (var + eps'))``, nearest to 1 where the variance is large. ``w`` and ``b`` are not
in a dump, but each column of the reference's own output is a straight line over the normalised input and gives both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_ROWS = 4  # two unknowns a column, and something left to contradict them
_DECADES = np.linspace(-14.0, 2.0, 321)


@dataclass(frozen=True)
class EpsilonFit:
    """The epsilon that explains a target best.

    Attributes:
        epsilon: The fitted value.
        share: Share of the error's energy that it explains, 0 to 1.
    """

    epsilon: float
    share: float


def fit_epsilon(values: Array, reference: Array, target: Array, epsilon: float, *, centred: bool = True) -> EpsilonFit | None:
    """Fit the target's epsilon; ``None`` where nothing differs, a value is not finite, or there are fewer than four rows.

    Args:
        values: Input, ``(rows, features)``; normalised over the features.
        reference: Output of the reference, the same shape.
        target: Output of the target, the same shape.
        epsilon: What the reference added to the variance.
        centred: Whether the mean is taken off, as in layer_norm; rms_norm does not.
    """
    error = target - reference
    total = float(np.sum(error * error))
    if len(values) < _ROWS or not np.isfinite(total) or total == 0.0 or not np.isfinite(values).all():
        return None
    shifted = values - values.mean(axis=1, keepdims=True) if centred else values
    variance = np.mean(shifted * shifted, axis=1)
    scaled = _scaled(shifted / np.sqrt(variance + epsilon)[:, None], reference, centred=centred)
    along, size = np.sum(error * scaled, axis=1), np.sum(scaled * scaled, axis=1)

    def left(decade: float) -> float:
        """Return the energy of the error that an epsilon of ``10 ** decade`` does not explain."""
        growth = np.sqrt((variance + epsilon) / (variance + 10.0**decade)) - 1.0
        return total - float(np.sum(2.0 * growth * along - growth * growth * size))

    best = _minimum(left)
    return EpsilonFit(epsilon=float(10.0**best), share=max(0.0, 1.0 - left(best) / total))


def _scaled(normalised: Array, reference: Array, *, centred: bool) -> Array:
    """Return ``w * normalised``, with ``w`` from a straight line through each column of the reference."""
    inner = normalised - normalised.mean(axis=0) if centred else normalised
    outer = reference - reference.mean(axis=0) if centred else reference
    energy = np.sum(inner * inner, axis=0)
    weight: Array = np.divide(np.sum(inner * outer, axis=0), energy, out=np.zeros_like(energy), where=energy > 0.0)
    scaled: Array = normalised * weight
    return scaled


def _minimum(left: Callable[[float], float]) -> float:
    """Return the best decade: a coarse grid, then thirds of the interval around its best point."""
    best = int(np.argmin([left(decade) for decade in _DECADES]))
    low, high = _DECADES[max(best - 1, 0)], _DECADES[min(best + 1, len(_DECADES) - 1)]
    for _ in range(40):
        third = (high - low) / 3.0
        if left(low + third) < left(high - third):
            high -= third
        else:
            low += third
    return float((low + high) / 2.0)

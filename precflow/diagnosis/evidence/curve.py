"""Is the error of a pointwise operator a smooth function of its input, as that of another formula or table is?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_BINS = 128
_IN_A_BIN = 16


def curve_share(values: Array, error: Array) -> float | None:
    """Return the share of the error's energy that a function of the value alone explains, 0 to 1.

    The values are sorted into 128 bins of equal count, with a straight line in each; what the lines leave is unexplained.
    Chance alone explains about two parameters in every bin, which is taken off.

    Args:
        values: Input of the operator, any shape.
        error: Target's output minus the reference's, the same shape.

    Returns:
        ``None`` where there are fewer than 2048 finite elements or no error.
    """
    kept = np.isfinite(values) & np.isfinite(error)
    x, y = values[kept], error[kept]
    count = x.size // _BINS
    total = float(y @ y)
    if count < _IN_A_BIN or total == 0.0:
        return None
    order = np.argsort(x, kind="stable")[: count * _BINS]
    x, y = x[order].reshape(_BINS, count), y[order].reshape(_BINS, count)
    share = 1.0 - _left(x, y) / float(np.sum(y * y) or total)
    chance = 2.0 / count
    return float(np.clip((share - chance) / (1.0 - chance), 0.0, 1.0))


def _left(x: Array, y: Array) -> float:
    """Return the energy that a straight line in each row does not explain."""
    inner, outer = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    energy = np.sum(inner * inner, axis=1)
    slope = np.divide(np.sum(inner * outer, axis=1), energy, out=np.zeros_like(energy), where=energy > 0.0)
    rest = outer - slope[:, None] * inner
    return float(np.sum(rest * rest))

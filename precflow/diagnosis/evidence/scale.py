"""Is the error a constant factor, and does it follow the value at all?

All functions take float64 arrays of one shape without mask fill values and without NaN or infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """A least squares fit of ``target = slope * reference``.

    Attributes:
        slope: The factor, 1 for no scaling.
        share: Share of the error's energy that the factor explains, 0 to 1: ``1 - |t - s r|^2 / |t - r|^2``.
    """

    slope: float
    share: float


def fit_scale(reference: Array, target: Array) -> Scale | None:
    """Fit one factor to all elements; ``None`` where nothing differs or the reference is zero.

    >>> fit_scale(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
    Scale(slope=1.5, share=1.0)
    """
    energy, error = _energy(reference), _energy(target - reference)
    if energy == 0.0 or error == 0.0:
        return None
    slope = float(np.vdot(reference, target)) / energy
    return Scale(slope=slope, share=max(0.0, 1.0 - _energy(target - slope * reference) / error))


def error_cosine(reference: Array, target: Array) -> float | None:
    """Return the cosine of the error and the reference: near 1 or -1 for a scale, near 0 for rounding; ``None`` for no error.

    >>> error_cosine(np.array([3.0, 0.0]), np.array([3.0, 1.0]))
    0.0
    """
    error = target - reference
    size = np.sqrt(_energy(error) * _energy(reference))
    return float(np.vdot(error, reference) / size) if size > 0.0 else None


def relative_error(reference: Array, target: Array) -> float | None:
    """Return the norm of the error relative to the norm of the reference; ``None`` where the reference is zero.

    >>> relative_error(np.array([4.0, 0.0]), np.array([4.0, 1.0]))
    0.25
    """
    energy = _energy(reference)
    return float(np.sqrt(_energy(target - reference) / energy)) if energy > 0.0 else None


def _energy(values: Array) -> float:
    return float(np.vdot(values, values))

"""Quantiles of the errors of a target against those that the reference has itself.

Of a pair of tensors alone, the errors are the differences, and those of the reference are of one rounding of its values. Where
an agent has computed the call again in float64, both are errors against that, each at the inputs of its own side.

Where both agree, the target is as exact as the reference; a straight line above is the same kind of error several times, and a
bend at the end is a few elements with an error of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.comparison.detail.description import as_reals
from precflow.comparison.detail.errors import LARGEST_FLOAT
from precflow.comparison.fused.kernel import pair_facts
from precflow.comparison.fused.value_classes import widen
from precflow.dumps.mapped_pages import release

MOST = 1 << 16  # elements that are looked at, at equal distances
SHARES = (*np.linspace(0.02, 0.98, 33).round(4).tolist(), 0.99, 0.999, 1.0)  # 0.5 is one of them
_PART = 1 << 12  # of these elements, before what was read around them is let go
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly: roundings without a random number


@dataclass(frozen=True)
class ErrorQuantiles:
    """Sizes of errors that a share of the elements does not exceed.

    Attributes:
        shares: The shares, ascending.
        own: ``|error|`` of one rounding of the reference's values to the less precise type of the two.
        found: ``|target - reference|``.
        elements: Number of elements that were looked at.
        measured: ``own`` is ``|reference - float64|`` instead, and ``found`` is ``|target - float64|``.
    """

    shares: tuple[float, ...]
    own: tuple[float, ...]
    found: tuple[float, ...]
    elements: int
    measured: bool = False

    @property
    def median_own(self) -> float:
        """Half of the reference's errors are smaller."""
        return self.own[self.shares.index(0.5)]

    @property
    def median_found(self) -> float:
        """Half of the errors are smaller."""
        return self.found[self.shares.index(0.5)]


def compare_quantiles(reference: npt.NDArray[Any], target: npt.NDArray[Any]) -> ErrorQuantiles | None:
    """Return the quantiles of a pair; ``None`` for integers, and where no finite element is left or nothing differs."""
    y, x = as_reals(reference), as_reals(target)
    if y.dtype.kind in "iub" or x.dtype.kind in "iub":
        return None
    step = max(1, -(-y.size // MOST))
    facts = pair_facts(y.dtype.name, x.dtype.name)
    digits = min(facts.reference.digits, facts.target.digits)
    left, right = (_take_every(side, step) for side in (y, x))
    usable = np.isfinite(left) & np.isfinite(right)
    left, right = left[usable], right[usable]
    if not left.size:
        return None
    with np.errstate(over="ignore"):
        found = np.minimum(np.abs(right - left), LARGEST_FLOAT)
    if not found.any():
        return None
    # A number from 2^e to 2^(e + 1) is off by up to 2^(e - digits) once it is rounded; frexp's exponent is e + 1.
    half = np.ldexp(1.0, np.frexp(left)[1] - 1 - digits)
    own = half * (np.arange(left.size) * _GOLDEN % 1.0)
    sizes = [tuple(float(size) for size in np.quantile(errors, SHARES)) for errors in (own, found)]
    return ErrorQuantiles(SHARES, sizes[0], sizes[1], int(left.size))


def _take_every(values: npt.NDArray[Any], step: int) -> npt.NDArray[Any]:
    """Return every so many elements, wide; a file that is mapped leaves memory again part by part."""
    parts = []
    part = step * _PART
    for start in range(0, max(values.size, 1), part):
        piece = values[start : start + part]
        parts.append(widen(piece[::step]))
        if step > 1:
            release(piece)
    return np.concatenate(parts)

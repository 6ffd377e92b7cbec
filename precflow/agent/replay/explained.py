"""How much of an output's error another computation explains, and at how many places it says something else."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

import torch

from precflow.agent.replay.numbers import REAL_TYPES, real_parts, round_once


class Explained(NamedTuple):
    """What another computation explains of one output.

    Attributes:
        share: ``1 - |output - other|^2 / |output - exact|^2``: 1 explains everything, 0 or less nothing.
        places: Elements for which the two computations give different numbers of the output's type.
    """

    share: float
    places: int


_NOTHING = Explained(0.0, 0)


def explain(output: torch.Tensor, exact: Optional[torch.Tensor], other: Optional[torch.Tensor]) -> Optional[Explained]:
    """Return what another computation explains of an output; ``None`` where the two computations agree.

    In 16 bits, rounding the result is often a larger error than computing it otherwise. It is the same for both computations,
    so they are compared as rounded too.

    Args:
        output: What a side recorded.
        exact: The right computation in float64, at that side's inputs; ``None`` if it has no such output.
        other: The other one.
    """
    if other is None or other.shape != output.shape:
        return _NOTHING
    if exact is None or exact.shape != output.shape:
        return Explained(1.0, output.numel())  # the shape alone says that it is not the right one
    if not (output.is_floating_point() or output.is_complex()):
        differ = int((exact != other).sum())
        return Explained(float(torch.equal(other.to(output.dtype), output)), differ) if differ else None
    dtype = REAL_TYPES.get(output.dtype, output.dtype)
    wide = torch.complex128 if output.is_complex() else torch.float64
    given, *both = [real_parts(tensor.to(wide)).contiguous() for tensor in (output, exact, other)]
    rounded = [round_once(values, dtype) for values in both]
    differ = int((_mark(rounded[0]) != _mark(rounded[1])).sum())
    if not differ:
        return None
    shares = [_measure_share(given, pair) for pair in (both, rounded)]
    return Explained(max(shares), differ)


def _mark(values: torch.Tensor) -> torch.Tensor:
    """Return values that can be compared: NaN is like NaN."""
    return torch.nan_to_num(values, nan=0.5 * torch.finfo(torch.float64).max)


def _measure_share(output: torch.Tensor, both: List[torch.Tensor]) -> float:
    kept = output.isfinite() & both[0].isfinite() & both[1].isfinite()
    energy, rest = (float((output[kept] - each[kept]).square().sum()) for each in both)
    if energy == 0.0:  # all that is wrong is not finite: where, is for the judge
        return float(rest == 0.0)
    return 1.0 - rest / energy

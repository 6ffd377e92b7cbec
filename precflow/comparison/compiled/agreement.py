"""When two summaries of the same elements agree: counts and maxima exactly, sums to a relative 1e-12."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from precflow.comparison.scaled import Scaled
from precflow.comparison.summary import Summary

TOLERANCE = 1e-12


def disagreements(first: Summary, second: Summary) -> list[str]:
    """Return the names of the fields in which two summaries differ by more than the order of additions explains.

    The product's rounding is relative to the squares, since its terms cancel; the divergence and the target's sum mean
    nothing where a value is negative.
    """
    return [name for name in Summary.__struct_fields__ if not _agrees(name, first, second)]


def _filled(fills: Summary) -> Summary:
    return replace(fills, rows=fills.rows.filled())


def _agrees(name: str, first: Summary, second: Summary) -> bool:
    left, right = getattr(first, name), getattr(second, name)
    if name == "fills":
        return (left is None) == (right is None) and (left is None or not disagreements(_filled(left), _filled(right)))
    if name == "rows":
        if left.difference.size != right.difference.size:
            return False
        return left.first == right.first and all(
            np.allclose(one, other, rtol=TOLERANCE, atol=0.0)
            for one, other in ((left.difference, right.difference), (left.reference, right.reference))
        )
    if not isinstance(left, Scaled):
        return bool(left == right)
    if name in {"divergence", "target_sum"} and first.negative:
        return True
    room = float(first.reference_square) + float(first.target_square) if name == "product" else 0.0
    return abs(float(left) - float(right)) <= TOLERANCE * (abs(float(right)) + room)

"""What a part of a tensor says about the whole: means are estimates, maxima are lower bounds, shares leave the rest open."""

from __future__ import annotations

import math
from dataclasses import replace

from precflow.comparison.measures import Measure
from precflow.comparison.metrics import METRICS
from precflow.comparison.sketch import DECISIVE

_LARGEST = frozenset({"max_abs_error", "max_rel_error", "mare", "ulp_distance", "max_rms_error", "worst_row_error"})
_COUNTED = ("share_within_", "allclose_share")
_EXACT = frozenset({"bitwise_equal"})  # told by the content id, which is that of the whole

Range = tuple[float, float]


def of_whole(measure: Measure) -> Measure:
    """Return a measure of a part of a tensor as one of the whole; one of the whole as it is.

    Where the part is equal and the whole is not, the part shows nothing of what differs: then nothing is bounded from above.

    Args:
        measure: Metrics and ranges of the elements that were kept, ``share`` of all.
    """
    if measure.share >= 1 or measure.equal or measure.evidence == "digest":
        return measure
    missed = measure.metrics.get("max_abs_error") == 0
    seen = {name: (value, value) for name, value in measure.metrics.items() if name not in _EXACT} | dict(measure.ranges)
    ranges = {name: _widened(name, limits, measure.share, missed=missed) for name, limits in seen.items()}
    metrics = {name: value for name, value in measure.metrics.items() if name not in _LARGEST}
    return replace(measure, metrics=metrics, ranges=ranges)


def _widened(name: str, seen: Range, share: float, *, missed: bool) -> Range:
    """Return between which values a metric of the whole lies, from its range over the part."""
    low, high = seen
    if name in _LARGEST:
        return low, math.inf
    if name.startswith(_COUNTED):
        return share * low, share * high + (1 - share)
    if name == "cosine_similarity":
        worst = -1.0 if missed else max(-1.0, 1 - (1 - low) / DECISIVE**2)
        return worst, 1 - (1 - high) * DECISIVE**2
    return low * DECISIVE, math.inf if missed else high / DECISIVE


assert METRICS.keys() >= _LARGEST | _EXACT, "every metric named here exists"

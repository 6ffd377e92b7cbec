"""One limit on one metric: how much of it a value uses, and when it is so wide that nothing could fail it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from precflow.comparison.metrics import at_least
from precflow.config.schema import Limits
from precflow.dumps.dtypes import float_facts

_FINE_DIGITS = 24  # float32 and float64; everything else is low precision

# metric -> where its limit becomes blind in float32 and float64, and in low precision. A relative L2 of e is a cosine of
# about 1 - e^2 / 2 and a divergence of about e^2 / 2. Metrics in the tensor's own unit have no such line.
_BLIND: Mapping[str, tuple[float, float]] = {
    "relative_l2": (0.1, 0.5),
    "accumulated_relative_error": (0.1, 0.5),
    "worst_row_error": (0.1, 0.5),
    "mean_rel_error": (0.1, 0.5),
    "mere": (0.1, 0.5),
    "max_rms_error": (1.0, 2.0),
    "max_rel_error": (1.0, 2.0),
    "mare": (1.0, 2.0),
    "kl_divergence": (0.005, 0.125),
    "cosine_similarity": (0.995, 0.875),
}
_IN_ULP = {"ulp_distance", "mean_ulp_distance"}  # 0.1 or 0.5 of the value, in units of the last place


@dataclass(frozen=True, slots=True)
class Condition:
    """A limit that a record must keep.

    Attributes:
        metric: Name in ``METRICS``, or of the user's own.
        limit: At most, or at least where the metric says so.
        source: A standard's name, ``tolerance``, or the pattern of a rule.
        because: Why a rule set it.
    """

    metric: str
    limit: float
    source: str
    because: str = ""

    @property
    def text(self) -> str:
        """The condition as screens show it: ``cosine_similarity >= 0.999``."""
        return f"{self.metric} {'>=' if at_least(self.metric) else '<='} {self.limit:.6g}"


def ratio(metric: str, value: float, limit: float) -> float:
    """Return how much of a limit a value uses: above 1 it fails.

    ``value / limit``, or ``(1 - value) / (1 - limit)`` where at least is asked. A value that is no number uses infinitely much.

    >>> ratio("relative_l2", 0.5, 2.0), ratio("cosine_similarity", 0.75, 0.5), ratio("rmse", 0.0, 0.0)
    (0.25, 0.5, 0.0)
    """
    used, allowed = (1 - value, 1 - limit) if at_least(metric) else (value, limit)
    if math.isnan(used):
        return math.inf
    if used <= 0:
        return 0.0
    if allowed <= 0:
        return math.inf
    return 1.0 if used == allowed else used / allowed


def is_blind(metric: str, limit: float, dtype: str) -> bool:
    """Say whether a limit is so wide that no plausible fault would fail it.

    Args:
        metric: Name in ``METRICS``.
        limit: The limit.
        dtype: Floating point type that decides.
    """
    facts = float_facts(dtype)
    low = facts.digits < _FINE_DIGITS
    if at_least(metric):
        return limit <= (_BLIND[metric][low] if metric in _BLIND else 0.0)
    if metric in _IN_ULP:
        return limit >= (0.5 if low else 0.1) * 2.0 ** (facts.digits - 1)
    return limit >= (_BLIND[metric][low] if metric in _BLIND else math.inf)


def conditions(limits: Limits, source: str, because: str = "") -> list[Condition]:
    """Return the limits that are set in a part of a recipe."""
    ours = {part.name: getattr(limits, part.name) for part in fields(Limits) if part.name != "metrics"}
    values = {**ours, **limits.metrics}.items()
    return [Condition(name, float(value), source, because) for name, value in values if value is not None]


def family(metric: str) -> str:
    """Return the name that a rule replaces a metric by: ``allclose_share`` covers its forms per element type."""
    return "allclose_share" if metric.startswith("allclose_share") else metric

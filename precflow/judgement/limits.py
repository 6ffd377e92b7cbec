"""One limit on one metric: how much of it a record uses, and when it is so wide that nothing could fail it.

A record's metric is one number where its tensors were read, and a range where it is estimated from a sketch or only bounded by
statistics. Within a range a record fails only if even the best value fails, and passes only if even the worst value passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precflow.agent.contract import DETAIL_FACTS
from precflow.comparison.measure import Measure
from precflow.config.schema import Limits
from precflow.dumps.dtypes import float_facts
from precflow.metrics import LIMITED, find_metric

_NO_FLOORS: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Condition:
    """A limit that a record must keep: a number, or a multiple of the record's noise floor.

    Attributes:
        metric: Name in ``METRICS``, or of the user's own.
        limit: At most, or at least where the metric says so; with ``least``, how many times the floor.
        source: A standard's name, ``tolerance``, or the pattern of a rule.
        because: Why a rule set it.
        least: The least floor, which is the rounding of the element type; ``None`` for a limit that is a number.
    """

    metric: str
    limit: float
    source: str
    because: str = ""
    least: float | None = None

    def limit_for(self, floor: float | None) -> float:
        """Return the limit for a record with this noise floor.

        >>> Condition("relative_l2", 3.0, "calibrated", least=0.25).limit_for(0.5)
        1.5
        """
        return self.limit if self.least is None else self.limit * max(floor or 0.0, self.least)

    @property
    def text(self) -> str:
        """The condition as screens show it: ``cosine_similarity >= 0.999``, ``relative_l2 <= 3 times its noise floor``."""
        if self.least is not None:
            return f"{self.metric} <= {self.limit:.6g} times its noise floor"
        return f"{self.metric} {'>=' if find_metric(self.metric).at_least else '<='} {self.limit:.6g}"


@dataclass(frozen=True, slots=True)
class Use:
    """How much of one limit a record uses.

    Attributes:
        condition: The condition.
        limit: Its limit for this record.
        floor: Noise floor of the record in this metric; ``None`` for a limit that is not made of it.
        value: The metric: exact, the best guess, or, if only bounds are known, the bound nearest to the perfect value.
        share: Share of the limit that ``value`` uses; above 1 fails.
        best: The least share that the true value may use.
        worst: The largest share that the true value may use.
        guessed: ``value`` is a best guess.
        bounded: Only bounds are known.
    """

    condition: Condition
    limit: float
    floor: float | None
    value: float
    share: float
    best: float
    worst: float
    guessed: bool = False
    bounded: bool = False

    @property
    def fails(self) -> bool:
        """It exceeds its limit, whatever the true value within the range is."""
        return self.best > 1

    @property
    def is_undecided(self) -> bool:
        """The limit is within the range, so the record may pass or fail."""
        return self.best <= 1 < self.worst


def ratio(metric: str, value: float, limit: float) -> float:
    """Return the share of a limit that a value uses: above 1 it fails.

    ``value / limit``, or ``(1 - value) / (1 - limit)`` for a metric whose limit means "at least". NaN uses infinitely much.

    >>> ratio("relative_l2", 0.5, 2.0), ratio("cosine_similarity", 0.75, 0.5), ratio("rmse", 0.0, 0.0)
    (0.25, 0.5, 0.0)
    """
    used, allowed = (1 - value, 1 - limit) if find_metric(metric).at_least else (value, limit)
    if math.isnan(used):
        return math.inf  # NaN compares false with everything, so that every limit would seem to be kept
    if used <= 0:
        return 0.0
    if allowed <= 0:
        return math.inf
    # A value that is exactly at its limit passes. inf / inf, such as an infinite error under an infinite limit, would be NaN.
    return 1.0 if used == allowed else used / allowed


def is_blind(metric: str, limit: float, dtype: str) -> bool:
    """Tell whether a limit is so wide that no plausible fault would fail it.

    A clean float32 run has a relative L2 near 1e-6. A limit of 0.1 would pass an output that is wrong by 10 %, and who reads
    "aligned" would be misled. So a record that has only such limits counts as blind, not as passed.

    Args:
        metric: Name in ``METRICS``.
        limit: The limit.
        dtype: Floating point type whose limits apply.
    """
    return find_metric(metric).is_blind(limit, float_facts(dtype).digits)


def list_conditions(limits: Limits, source: str, because: str = "") -> list[Condition]:
    """Return the limits that are set in a part of a recipe, those on the user's own metrics (``metrics``) last."""
    shipped = {name: getattr(limits, name) for name in LIMITED}
    values = {**shipped, **limits.metrics}.items()
    return [Condition(name, float(value), source, because) for name, value in values if value is not None]


def measure_uses(measure: Measure, conditions: Iterable[Condition], floors: Mapping[str, float] = _NO_FLOORS) -> list[Use]:
    """Return how much a record uses of each condition whose metric is known, even if only by bounds.

    Args:
        measure: The record.
        conditions: The conditions.
        floors: Metric -> noise floor of the record.
    """
    uses = []
    for condition in conditions:
        name = condition.metric
        floor = None if condition.least is None else floors.get(name, 0.0)
        limit = condition.limit_for(floor)
        if name in measure.ranges:
            # The end nearest to the perfect value comes first: the lowest error, but the highest cosine_similarity.
            ends = sorted(measure.ranges[name], reverse=find_metric(name).at_least)
            best, worst = (ratio(name, end, limit) for end in ends)
            value, guessed = measure.metrics.get(name, ends[0]), name in measure.metrics
            share = ratio(name, value, limit)
            uses.append(Use(condition, limit, floor, value, share, best, worst, guessed=guessed, bounded=not guessed))
        elif name in measure.metrics:
            share = ratio(name, measure.metrics[name], limit)
            uses.append(Use(condition, limit, floor, measure.metrics[name], share, share, share))
    return uses


def find_unavailable(measure: Measure, conditions: Iterable[Condition]) -> list[Condition]:
    """Return the conditions whose metric has a meaning for a record but cannot be computed from what was kept of it."""
    return [condition for condition in conditions if condition.metric in measure.absent]


def describe_undecided(use: Use, measure: Measure) -> str:
    """Say what is known of an undecided condition, and why that is not enough."""
    low, high = measure.ranges[use.condition.metric]
    limit = f"its limit {use.limit:.3g} ({use.condition.source})"
    kept = DETAIL_FACTS[measure.evidence].kept if measure.evidence else "what was kept"
    part = f" of {measure.share:.3g} of its elements" if measure.share < 1 else ""
    if use.guessed:
        return f"{use.condition.metric} is about {use.value:.3g} by {kept}{part}, too near to {limit} to decide"
    return f"{use.condition.metric} is between {low:.3g} and {high:.3g} by {kept}{part}, which does not decide {limit}"

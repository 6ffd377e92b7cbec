"""One limit on one metric: how much of it a value uses, and when it is so wide that nothing could fail it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from precflow.agent.contract import DETAIL_FACTS
from precflow.comparison.measures import Measure
from precflow.config.schema import Limits
from precflow.dumps.dtypes import float_facts
from precflow.metrics import LIMITED, find_metric


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
        return f"{self.metric} {'>=' if find_metric(self.metric).at_least else '<='} {self.limit:.6g}"


def ratio(metric: str, value: float, limit: float) -> float:
    """Return how much of a limit a value uses: above 1 it fails.

    ``value / limit``, or ``(1 - value) / (1 - limit)`` where at least is asked. A value that is no number uses infinitely much.

    >>> ratio("relative_l2", 0.5, 2.0), ratio("cosine_similarity", 0.75, 0.5), ratio("rmse", 0.0, 0.0)
    (0.25, 0.5, 0.0)
    """
    used, allowed = (1 - value, 1 - limit) if find_metric(metric).at_least else (value, limit)
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
    return find_metric(metric).is_blind(limit, float_facts(dtype).digits)


def conditions(limits: Limits, source: str, because: str = "") -> list[Condition]:
    """Return the limits that are set in a part of a recipe."""
    ours = {name: getattr(limits, name) for name in LIMITED}
    values = {**ours, **limits.metrics}.items()
    return [Condition(name, float(value), source, because) for name, value in values if value is not None]


# How much of a limit a record uses: a number where its metric is exact, a range where it is estimated or only bounded.


@dataclass(frozen=True, slots=True)
class Use:
    """One condition and what a record uses of it.

    Attributes:
        condition: The limit.
        value: The metric: exact, the best guess, or, where only bounds are known, the bound nearest to the perfect value.
        share: How much of the limit ``value`` uses; above 1 fails.
        best: The least that it may use.
        worst: The most that it may use.
        guessed: ``value`` is a best guess.
        bounded: Only bounds are known.
    """

    condition: Condition
    value: float
    share: float
    best: float
    worst: float
    guessed: bool = False
    bounded: bool = False

    @property
    def fails(self) -> bool:
        """It exceeds its limit, whatever the truth within its range is."""
        return self.best > 1

    @property
    def is_open(self) -> bool:
        """Its range does not tell whether it exceeds its limit."""
        return self.best <= 1 < self.worst


def uses(measure: Measure, conditions: Iterable[Condition]) -> list[Use]:
    """Return what a record uses of each condition whose metric is known of it, if only by bounds."""
    known = {*measure.metrics, *measure.ranges}
    return [_use(measure, condition) for condition in conditions if condition.metric in known]


def lacking(measure: Measure, conditions: Iterable[Condition]) -> list[Condition]:
    """Return the conditions whose metric has a meaning for a record and cannot be had from what was kept."""
    return [condition for condition in conditions if condition.metric in measure.absent]


def _use(measure: Measure, condition: Condition) -> Use:
    name, limit = condition.metric, condition.limit
    if name not in measure.ranges:
        share = ratio(name, measure.metrics[name], limit)
        return Use(condition, measure.metrics[name], share, share, share)
    ends = sorted(measure.ranges[name], reverse=find_metric(name).at_least)
    best, worst = (ratio(name, end, limit) for end in ends)
    value = measure.metrics.get(name, ends[0])
    guessed = name in measure.metrics
    return Use(condition, value, ratio(name, value, limit), best, worst, guessed=guessed, bounded=not guessed)


def described(use: Use, measure: Measure) -> str:
    """Return in words what is known of an open condition, and why that does not decide it."""
    low, high = measure.ranges[use.condition.metric]
    limit = f"its limit {use.condition.limit:.3g} ({use.condition.source})"
    kept = DETAIL_FACTS[measure.evidence].kept
    part = f" of {measure.share:.3g} of its elements" if measure.share < 1 else ""
    if use.guessed:
        return f"{use.condition.metric} is about {use.value:.3g} by {kept}{part}, too near to {limit} to decide"
    return f"{use.condition.metric} is between {low:.3g} and {high:.3g} by {kept}{part}, which does not decide {limit}"

"""How much of a limit a record uses: a number where its metric is exact, a range where it is estimated or only bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from precflow.comparison.measures import Measure
from precflow.comparison.metrics import at_least
from precflow.judgement.limits import Condition, ratio


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
    ends = sorted(measure.ranges[name], reverse=at_least(name))
    best, worst = (ratio(name, end, limit) for end in ends)
    value = measure.metrics.get(name, ends[0])
    guessed = name in measure.metrics
    return Use(condition, value, ratio(name, value, limit), best, worst, guessed=guessed, bounded=not guessed)


def described(use: Use, measure: Measure) -> str:
    """Return in words what is known of an open condition, and why that does not decide it."""
    low, high = measure.ranges[use.condition.metric]
    limit = f"its limit {use.condition.limit:.3g} ({use.condition.source})"
    kept = _KEPT.get(measure.evidence, "what was kept")
    part = f" of {measure.share:.3g} of its elements" if measure.share < 1 else ""
    if use.guessed:
        return f"{use.condition.metric} is about {use.value:.3g} by {kept}{part}, too near to {limit} to decide"
    return f"{use.condition.metric} is between {low:.3g} and {high:.3g} by {kept}{part}, which does not decide {limit}"


_KEPT = {"sketch": "its sketch", "statistics": "its statistics"}

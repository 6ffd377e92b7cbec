"""Measures of two passes over the same records: what the second one could measure takes the place of an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precflow.comparison.measures import Measure


def merged(first: Sequence[Measure], second: Sequence[Measure]) -> list[Measure]:
    """Return the first pass's measures, in their order, each replaced by the second pass's where that has metrics.

    A record that the second pass has on one side only, or could not read, keeps its estimate. Where a call stands in the
    graph is what the first pass says: the second numbers only what it recorded.
    """
    again = {measure.record: measure for measure in second if measure.join == "paired" and measure.metrics}
    return [_replaced(measure, again.get(measure.record)) for measure in first]


def _replaced(first: Measure, second: Measure | None) -> Measure:
    if second is None:
        return first
    return replace(second, order=first.order, site=first.site, target_site=first.target_site, arguments=first.arguments)

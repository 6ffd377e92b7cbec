"""Sections ``tolerance``, ``accepted`` and ``coverage`` of a recipe: invalid limits, accepted differences without expiry."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any

from precflow.agent.contract import FILLS, LARGEST
from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import Accepted, Limits, RunConfig, ToleranceRule
from precflow.config.sections import standards
from precflow.metrics import LIMITED, find_metric

# Recipes come from others: these bound what one may cost for every record.
_MOST_FILLS = 32  # each is looked for in every tensor
_CLOSEST = 0.05  # two mask constants differ by more than this share: rounded to 16 bits they must not become one
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def find_problems(config: RunConfig, data: Mapping[str, Any]) -> PathProblems:
    """Yield limits that nothing could fail, or that nothing reaches, and differences that are accepted without an end.

    Args:
        config: The configuration.
        data: The same as plain data, which shows what was left out.
    """
    yield from _check_fills(config)
    yield from _check_tolerance(config, data)
    yield from _check_accepted(config)
    yield from _check_limits(config)


def find_expired(config: RunConfig, today: datetime.date) -> PathProblems:
    """Yield accepted differences whose last day has passed: a run counts them as failures again."""
    for number, entry in enumerate(config.accepted):
        day = _parse_day(entry.until)
        if day is not None and day < today:
            yield ("accepted", str(number), "until"), f"{entry.until} has passed: this difference fails again"


def _check_fills(config: RunConfig) -> PathProblems:
    """Yield mask constants that are no use: not finite, too small, or (nearly) the same as one that is known already."""
    if len(config.tolerance.fills) > _MOST_FILLS:
        yield ("tolerance", "fills"), f"has {len(config.tolerance.fills)} constants; expected at most {_MOST_FILLS}"
        return
    known = list(FILLS)
    for number, fill in enumerate(config.tolerance.fills):
        path = ("tolerance", "fills", str(number))
        if not 1 <= abs(fill) <= LARGEST["float64"]:
            yield path, f"is {fill:g}; expected a finite number of at least 1 in magnitude"
            continue
        near = next((other for other in known if abs(fill - other) <= _CLOSEST * abs(other)), None)
        if near is not None:
            yield path, f"is {fill:g}, which lies within {_CLOSEST:.0%} of {near:g}: that is known already"
        known.append(fill)


def _check_tolerance(config: RunConfig, data: Mapping[str, Any]) -> PathProblems:
    if not config.tolerance.standards and not _given_limits(config.tolerance) and not config.tolerance.rules:
        yield ("tolerance", "standards"), "is an empty list and there is no limit: nothing could fail. Use [calibrated]"
    for number, rule in enumerate(config.tolerance.rules):
        path = ("tolerance", "rules", str(number))
        # `match` has a default in the schema, so only the data shows that nobody wrote it.
        if "match" not in _get_item(data, path) or not rule.match:
            yield path, "has no `match`: a pattern over `module` or `module / operator`"
        if not _given_limits(rule):
            yield path, f"sets no limit; metrics are {', '.join(LIMITED[:4])}..."
        for metric, source in () if rule.because else _loosened_limits(rule, config):
            yield path, f"loosens {metric} of {source} without `because`"


def _loosened_limits(rule: ToleranceRule, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield ``(metric, whose limit)`` where a rule's limit is wider than the one it takes the place of."""
    dtype = standards.coarsest(config.reference.dtype, config.target.dtype)
    others = {f"`{name}`": standards.limits(name, dtype) for name in config.tolerance.standards}
    for source, general in {"the plain limit": _given_limits(config.tolerance), **others}.items():
        for metric, limit in _given_limits(rule).items():
            if metric in general and (limit < general[metric] if find_metric(metric).at_least else limit > general[metric]):
                yield metric, source


def _check_accepted(config: RunConfig) -> PathProblems:
    for number, entry in enumerate(config.accepted):
        path = ("accepted", str(number))
        lacking = [key for key in ("match", "because", "until") if not getattr(entry, key)]
        if lacking:
            listed = ", ".join(f"`{key}`" for key in lacking)
            yield path, f"has no {listed}: what is accepted is written down, with its last day"
        if entry.until and _parse_day(entry.until) is None:
            yield (*path, "until"), f'`{entry.until}` is not a day: write "YYYY-MM-DD"'


def list_limit_groups(config: RunConfig) -> list[tuple[DottedPath, Limits]]:
    """Return every place in a recipe that sets limits, with its path: tolerance, its rules, and accepted differences."""
    groups: list[tuple[DottedPath, Limits]] = [(("tolerance",), config.tolerance)]
    groups += [(("tolerance", "rules", str(number)), rule) for number, rule in enumerate(config.tolerance.rules)]
    return groups + [(("accepted", str(number)), entry) for number, entry in enumerate(config.accepted)]


def _check_limits(config: RunConfig) -> PathProblems:
    for path, limits in list_limit_groups(config):
        for metric, limit in _given_limits(limits).items():
            at_least = find_metric(metric).at_least
            if at_least and limit > 1:
                yield (*path, metric), f"means at least {limit:g}, which nothing reaches: a share of one such as 0.999 or 99.9%"
            elif not at_least and limit < 0:
                yield (*path, metric), f"means at most {limit:g}, which nothing reaches"
    if config.coverage.minimum > 1:
        yield ("coverage", "minimum"), "is a share of all records: at most 1"
    if config.coverage.elements > 1:
        yield ("coverage", "elements"), "is a share of the elements of what was compared: at most 1"


def _given_limits(limits: Limits | ToleranceRule | Accepted) -> dict[str, float]:
    ours = {metric: getattr(limits, metric) for metric in LIMITED if getattr(limits, metric) is not None}
    return {**ours, **limits.metrics}


def _get_item(data: Any, path: DottedPath) -> Mapping[str, Any]:
    for part in path:
        if isinstance(data, (list, tuple)) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            data = data.get(part) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _parse_day(text: str) -> datetime.date | None:
    # From Python 3.11 on, fromisoformat also takes 20270331 and the week date 2027-W13-3. Days are compared as text elsewhere,
    # and a week date would sort behind every other day of its year.
    if not _DAY.fullmatch(text):
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None

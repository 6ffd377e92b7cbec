"""What must hold in a configuration beyond keys and types: values that contradict each other or can never have an effect.

Every check yields ``(path, message)`` for each problem, and all checks run: a user sees everything that is wrong at once.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from precflow import __version__
from precflow.agent import redaction
from precflow.agent.contract import BACKWARD, FILLS, GRADIENT, LARGEST, MODULE, OPERATOR, OPTIMIZER
from precflow.agent.sampling import parse_slices
from precflow.config import emulation, factories, standards
from precflow.config.documents import DottedPath, PathProblems, walk_scalars
from precflow.config.schema import Accepted, Capture, CaptureRule, Limits, RunConfig, ToleranceRule
from precflow.config.suggestions import did_you_mean
from precflow.config.trust import TARGET
from precflow.config.vocabulary import COLUMNS, ESCALATING
from precflow.metrics import LIMITED, find_metric

_MOST_FILLS = 32
_CLOSEST = 0.05  # two mask constants differ by more than this share: rounded to 16 bits they must not become one

# A phase is recorded by some levels only: gradients of weights, for instance, belong to modules and to no single call.
_LEVELS_OF_PHASE = {BACKWARD: (MODULE, OPERATOR), GRADIENT: (MODULE,), OPTIMIZER: (MODULE,)}
_CONDITIONS = ("match", "class_", "operator", "level", "phase", "step", "rank")

_NOT_EMPTY = (
    ("reference", "device"),
    ("target", "device"),
    ("capture", "level"),
    ("capture", "phase"),
    ("capture", "scope"),
    ("capture", "step"),
    ("report", "columns"),
    ("report", "formats"),
)


def find_problems(config: RunConfig, data: Mapping[str, Any]) -> PathProblems:
    """Yield everything that makes a configuration unusable.

    Args:
        config: The configuration.
        data: The same as plain data, which shows what was left out.
    """
    yield from _check_secrets(data)
    yield from _check_stores(config)
    yield from _check_empty_lists(config)
    yield from _check_fills(config)
    yield from _check_rules(config, data)
    yield from _check_accepted(config)
    yield from _check_limits(config)
    yield from _check_versions(config)
    yield from _check_user_metrics(config)
    yield from _check_executor(config)
    yield from _check_capture(config)
    yield from emulation.find_problems(config.emulate.rules)
    yield from factories.check_shipped(config)
    if config.emulate.name and "emulated" not in config.target.device:
        yield ("target", "device"), f"emulate={config.emulate.name} would do nothing: the target is not `emulated`"


def find_expired(config: RunConfig, today: datetime.date) -> PathProblems:
    """Yield accepted differences whose last day has passed: a run counts them as failures again."""
    for number, entry in enumerate(config.accepted):
        day = _parse_day(entry.until)
        if day is not None and day < today:
            yield ("accepted", str(number), "until"), f"{entry.until} has passed: this difference fails again"


def _check_stores(config: RunConfig) -> PathProblems:
    for key, address in (("store", config.store), ("site.store", config.site.store)):
        if "://" in address:
            yield tuple(key.split(".")), f"object stores are not available in precflow {__version__}: name a folder"


def _check_secrets(data: Mapping[str, Any]) -> PathProblems:
    for path, value in walk_scalars(data):
        if isinstance(value, str) and redaction.REDACTED[:-1] in value:
            yield path, "stands for a secret, which is never written down: give the secret itself"


def _check_empty_lists(config: RunConfig) -> PathProblems:
    for section, key in _NOT_EMPTY:
        if not getattr(getattr(config, section), key):
            yield (section, key), "is an empty list: leave it out for the default"
    if not config.tolerance.standards and not _given_limits(config.tolerance) and not config.tolerance.rules:
        yield ("tolerance", "standards"), "is an empty list and there is no limit: nothing could fail. Use [default]"


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


def _check_rules(config: RunConfig, data: Mapping[str, Any]) -> PathProblems:
    for number, rule in enumerate(config.tolerance.rules):
        path = ("tolerance", "rules", str(number))
        if "match" not in _written_item(data, path) or not rule.match:
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
        missing = [key for key in ("match", "because", "until") if not getattr(entry, key)]
        if missing:
            yield (
                path,
                f"has no {', '.join(f'`{key}`' for key in missing)}: what is accepted is written down, with its last day",
            )
        if entry.until and _parse_day(entry.until) is None:
            yield (*path, "until"), f'`{entry.until}` is not a day: write "YYYY-MM-DD"'


def _limit_groups(config: RunConfig) -> list[tuple[DottedPath, Limits]]:
    groups: list[tuple[DottedPath, Limits]] = [(("tolerance",), config.tolerance)]
    groups += [(("tolerance", "rules", str(number)), rule) for number, rule in enumerate(config.tolerance.rules)]
    return groups + [(("accepted", str(number)), entry) for number, entry in enumerate(config.accepted)]


def _check_limits(config: RunConfig) -> PathProblems:
    for path, limits in _limit_groups(config):
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


def _check_versions(config: RunConfig) -> PathProblems:
    require = config.environment.require
    for path, text in (
        (("about", "needs"), config.about.needs),
        (("environment", "require", "torch"), require.torch),
        (("environment", "require", "python"), require.python),
    ):
        try:
            wanted = SpecifierSet(text)
        except InvalidSpecifier:
            yield path, f'`{text}` is not a range of versions such as ">=2.1" or ">=0.1,<1"'
            continue
        if path[0] == "about" and not wanted.contains(__version__, prereleases=True):
            yield path, f"the recipe needs precflow {text}, this is {__version__}"


def _check_user_metrics(config: RunConfig) -> PathProblems:
    for name, declared in config.metrics.items():
        if name in COLUMNS:
            yield ("metrics", name), "is a metric of precflow's: give yours another name"
        if TARGET not in declared:
            yield ("metrics", name), f"has no `{TARGET}`: the dotted name of a class, such as my_package.my_metrics.SignFlips"
    for path, limits in _limit_groups(config):
        for name in limits.metrics.keys() - config.metrics.keys():
            yield (*path, "metrics", name), f"is no metric of this recipe's `metrics`.{did_you_mean(name, config.metrics)}"
    known = (*COLUMNS, *config.metrics)
    for number, name in enumerate(config.report.columns):
        if name not in known:
            yield ("report", "columns", str(number)), f"`{name}` is not one of {', '.join(known)}.{did_you_mean(name, known)}"


def _check_executor(config: RunConfig) -> PathProblems:
    executor = config.executor
    if executor.name == "local" and executor.address:
        yield ("executor", "address"), "is for executor=dask"
    for key in ("workers", "threads"):
        if getattr(executor, key) < 0:
            yield ("executor", key), "is a number; 0 is one a processor"


def _given_limits(limits: Limits | ToleranceRule | Accepted) -> dict[str, float]:
    ours = {metric: getattr(limits, metric) for metric in LIMITED if getattr(limits, metric) is not None}
    return {**ours, **limits.metrics}


def _written_item(data: Any, path: DottedPath) -> Mapping[str, Any]:
    for part in path:
        if isinstance(data, (list, tuple)) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            data = data.get(part) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _parse_day(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if len(text) == len("2027-03-31") else None
    except ValueError:
        return None


def _check_capture(config: RunConfig) -> PathProblems:
    capture = config.capture
    yield from _check_capture_rules(capture)
    yield from _check_ranks(config)
    yield from _check_phases(capture)
    if capture.keep_last < 0:
        yield ("capture", "keep_last"), "is a number of steps: 0 keeps all"
    given = next((side for side in ("reference", "target") if getattr(config, side).dump), "")
    if capture.detail == ESCALATING and given:
        yield ("capture", "detail"), f"escalating runs both sides a second time, and {given}.dump is given: use capture=tensors"
    if capture.detail == ESCALATING and capture.keep_last:
        yield ("capture", "keep_last"), "and escalating exclude each other: the second pass looks into steps of the first"


def _check_phases(capture: Capture) -> PathProblems:
    """Refuse a phase that none of the chosen levels records: nothing of it would be compared, and nobody would notice."""
    for phase, levels in _LEVELS_OF_PHASE.items():
        if phase in capture.phase and capture.level and not set(levels) & set(capture.level):
            problem = (
                f"{phase} is recorded at level {' or '.join(levels)}, and capture.level has {', '.join(capture.level)} only"
            )
            yield ("capture", "phase"), f"{problem}: capture.level=[{','.join((levels[0], *capture.level))}]"


def _check_capture_rules(capture: Capture) -> PathProblems:
    last = ""  # the first rule that matches everything: those after it never count
    for number, rule in enumerate(capture.rules):
        path: DottedPath = ("capture", "rules", str(number))
        if last:
            yield path, f"never counts: {last} matches everything, and the first match counts"
        yield from ((path, text) for text in _describe_contradictions(rule))
        if not 0 < rule.sample <= 1:
            yield (*path, "sample"), "is a share above 0 and at most 1, such as 1%"
        if not any(getattr(rule, key) for key in _CONDITIONS):
            last = f"rules[{number}]"
        yield from _check_slices(rule, path)


def _describe_contradictions(rule: CaptureRule) -> Iterator[str]:
    parts = rule.slices or float(rule.sample) != 1.0
    if not (rule.detail or parts):
        yield "changes nothing: give it a detail (digest, statistics, sketch, tensors, none), slices or a sample"
    if rule.detail == "none" and parts:
        yield "keeps nothing of what it matches (detail: none), so slices and sample mean nothing"


def _check_slices(rule: CaptureRule, path: DottedPath) -> PathProblems:
    if rule.slices:
        try:
            parse_slices(rule.slices)
        except ValueError as error:
            yield (*path, "slices"), str(error)


def _check_ranks(config: RunConfig) -> PathProblems:
    named: list[tuple[DottedPath, tuple[int, ...]]] = [(("capture", "rank"), config.capture.rank)]
    named += [(("capture", "rules", str(number), "rank"), rule.rank) for number, rule in enumerate(config.capture.rules)]
    for path, wanted in named:
        if beyond := [rank for rank in wanted if rank > 0]:
            yield path, f"names rank {beyond[0]}; a side is one process, rank 0"

"""What must hold in a built configuration beyond keys and types; every check yields ``(path, message)``."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from precflow import __version__
from precflow.agent import redaction
from precflow.agent.contract import BACKWARD, FILLS, GRADIENT, HEADER_FILE, LARGEST, MODULE, OPERATOR, OPTIMIZER
from precflow.agent.sampling import parse_slices
from precflow.config import emulation, factories, standards
from precflow.config.documents import DottedPath, scalars
from precflow.config.plain import plain
from precflow.config.schema import Accepted, Capture, CaptureRule, Limits, Rule, RunConfig, Side
from precflow.config.suggestions import did_you_mean
from precflow.config.trust import SHIPPED, TARGET
from precflow.config.vocabulary import COLUMNS, ESCALATING, SEEDED, names_file
from precflow.metrics import LIMITED, find_metric

Found = Iterator[tuple[DottedPath, str]]

_MOST_FILLS = 32
_APART = 0.05  # of a constant: bands around two of them never meet in any element type

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


def problems(config: RunConfig, data: Mapping[str, Any]) -> Found:
    """Yield everything that makes a configuration unusable.

    Args:
        config: As built.
        data: As written, for what was left out.
    """
    yield from _secrets(data)
    yield from _object_stores(config)
    yield from _empty(config)
    yield from _fills(config)
    yield from _rules(config, data)
    yield from _accepted(config)
    yield from _limits(config)
    yield from _versions(config)
    yield from _own_metrics(config)
    yield from _executor(config)
    yield from _capture(config)
    yield from emulation.problems(config.emulate.rules)
    yield from factories.shipped(config)
    if config.emulate.name and "emulated" not in config.target.device:
        yield ("target", "device"), f"emulate={config.emulate.name} would do nothing: the target is not `emulated`"


def expired(config: RunConfig, today: datetime.date) -> Found:
    """Yield accepted differences whose last day has passed: a run counts them as failures again."""
    for number, entry in enumerate(config.accepted):
        day = _day(entry.until)
        if day is not None and day < today:
            yield ("accepted", str(number), "until"), f"{entry.until} has passed: this difference fails again"


def incomplete(config: RunConfig) -> Found:
    """Yield what is missing before a side can run: something to run, or a dump of its own."""
    dumps = [os.path.abspath(os.path.expanduser(side.dump)) for side in (config.reference, config.target) if side.dump]  # noqa: PTH100, PTH111  Path refuses some texts
    if len(dumps) != len(set(dumps)):
        yield ("target", "dump"), "is the dump of the reference too: a dump always agrees with itself"
    for side in ("reference", "target"):
        settings = getattr(config, side)
        if settings.dump or side not in config.sides:
            continue
        if not config.workload.model:
            yield (side, "dump"), f"{side} has nothing to run: {side}.dump=PATH of an existing dump, or workload.model._target_"
        elif "_target_" not in config.workload.model or "_target_" not in config.workload.inputs:
            part = "model" if "_target_" not in config.workload.model else "inputs"
            yield ("workload", part, "_target_"), "is missing: the dotted name of the function that makes it"
            return
        elif "optimizer" in config.capture.phase and not config.workload.optimizer:
            yield ("capture", "phase"), "has `optimizer`, which needs one: workload.optimizer._target_=torch.optim.AdamW"
            return


def absent(config: RunConfig) -> Found:
    """Yield every path that must be here before any work and is not what it should be.

    Only what this machine is going to use: a side that runs elsewhere, or whose dump is given, needs nothing of its own here,
    and the weights of one behind a launcher may lie on another machine.
    """
    here = [(name, side) for name, side in (("reference", config.reference), ("target", config.target)) if name in config.sides]
    for name, side in here:
        if side.dump:
            yield from _not_there((name, "dump"), side.dump, _FOLDER, f"the folder that holds {HEADER_FILE}")
        else:
            yield from _absent_of_side(name, side)
    if any(not side.dump for _, side in here) and not any(side.launcher for _, side in here):
        yield from _absent_of_workload(config)
    for path, text in ((("store",), config.store), (("site", "store"), config.site.store), (("runs",), config.runs)):
        folder = Path(text or ".").expanduser()
        above = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
        if "://" not in text and above.is_file():
            yield path, f"{above} is a file; expected a folder, or a place where one can be made"


def _absent_of_side(name: str, side: Side) -> Found:
    for number, file in enumerate(side.setup):
        yield from _not_there((name, "setup", str(number)), file, _FILE, "a shell file to source before the interpreter starts")
    own = side.variables.get("PATH")
    found_by_setup = side.setup and side.launcher and "/" not in side.launcher[0]  # which may change PATH
    if side.launcher and not found_by_setup and side.launcher[0] != "{command}":
        yield from _not_there((name, "launcher", "0"), side.launcher[0], _PROGRAM, "the program that starts the agent", own)
    if side.interpreter:
        expected = "the Python of this side, such as /usr/bin/python3"
        yield from _not_there((name, "interpreter"), side.interpreter, _PROGRAM, expected)


def _absent_of_workload(config: RunConfig) -> Found:
    """Yield files that arguments name: all those of shipped factories, of others those that can be nothing but a path."""
    for part in ("model", "inputs", "loss", "optimizer"):
        arguments = getattr(config.workload, part)
        shipped = str(arguments.get(TARGET, "")).startswith(f"{SHIPPED}.")
        for key, value in arguments.items():
            if not isinstance(value, str) or value in {"", SEEDED} or not names_file(key):
                continue
            if shipped or value.startswith(("/", "./", "../", "~")):  # `weights: org/model` may be a name on a hub
                yield from _not_there(("workload", part, key), value, _ANY, "a file or a folder")
    used = [text for _, text in scalars(plain(config.workload)) if isinstance(text, str)]
    for name, place in config.site.paths.items():
        if any(text == place or text.startswith(f"{place.rstrip('/')}/") for text in used):
            yield from _not_there(("site", "paths", name), place, _ANY, "a file or a folder: workload names it")


_FILE, _FOLDER, _PROGRAM, _ANY = "file", "folder", "program", "any"


def _not_there(path: DottedPath, text: str, kind: str, expected: str, search: str | None = None) -> Found:
    """Yield a problem where a path is not of its kind; programs are searched for in ``search``, or in the PATH of precflow."""
    try:
        place = Path(text).expanduser()
        is_file, is_folder, exists = place.is_file(), place.is_dir(), place.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown ~user
        yield path, f"{text} does not exist; expected {expected}"
        return
    is_program = kind == _PROGRAM and shutil.which(os.path.expanduser(text), path=search) is not None  # noqa: PTH111  a Path loses "./"
    if {_FILE: is_file, _FOLDER: is_folder, _PROGRAM: is_program, _ANY: exists}[kind]:
        return
    if is_file:
        found = "is not executable" if kind == _PROGRAM else "is a file"
    else:
        found = "is a folder" if is_folder else "is no regular file" if exists else "does not exist"
    yield path, f"{text} {found}; expected {expected}"


def _object_stores(config: RunConfig) -> Found:
    for key, address in (("store", config.store), ("site.store", config.site.store)):
        if "://" in address and not address.startswith("file://"):
            yield tuple(key.split(".")), f"object stores are not available in precflow {__version__}: name a folder"


def _secrets(data: Mapping[str, Any]) -> Found:
    for path, value in scalars(data):
        if isinstance(value, str) and redaction.REDACTED[:-1] in value:
            yield path, "stands for a secret, which is never written down: give the secret itself"


def _empty(config: RunConfig) -> Found:
    for section, key in _NOT_EMPTY:
        if not getattr(getattr(config, section), key):
            yield (section, key), "is an empty list: leave it out for the default"
    if not config.tolerance.standards and not _limits_of(config.tolerance) and not config.tolerance.rules:
        yield ("tolerance", "standards"), "is an empty list and there is no limit: nothing could fail. Use [default]"


def _fills(config: RunConfig) -> Found:
    """Yield constants of masks that no mask is made of, and those that are known or stand too close to one that is."""
    if len(config.tolerance.fills) > _MOST_FILLS:
        yield ("tolerance", "fills"), f"has {len(config.tolerance.fills)} constants; expected at most {_MOST_FILLS}"
        return
    known = list(FILLS)
    for number, fill in enumerate(config.tolerance.fills):
        path = ("tolerance", "fills", str(number))
        if not 1 <= abs(fill) <= LARGEST["float64"]:
            yield path, f"is {fill:g}; expected a finite number of at least 1 in magnitude"
            continue
        near = next((other for other in known if abs(fill - other) <= _APART * abs(other)), None)
        if near is not None:
            yield path, f"is {fill:g}, which lies within {_APART:.0%} of {near:g}: that is known already"
        known.append(fill)


def _rules(config: RunConfig, data: Mapping[str, Any]) -> Found:
    for number, rule in enumerate(config.tolerance.rules):
        path = ("tolerance", "rules", str(number))
        if "match" not in _item(data, path) or not rule.match:
            yield path, "has no `match`: a pattern over `module` or `module / operator`"
        if not _limits_of(rule):
            yield path, f"sets no limit; metrics are {', '.join(LIMITED[:4])}..."
        for metric, source in () if rule.because else _loosened(rule, config):
            yield path, f"loosens {metric} of {source} without `because`"


def _loosened(rule: Rule, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield ``(metric, whose limit)`` where a rule's limit is wider than the one it takes the place of."""
    dtype = standards.coarsest(config.reference.dtype, config.target.dtype)
    others = {f"`{name}`": standards.limits(name, dtype) for name in config.tolerance.standards}
    for source, general in {"the plain limit": _limits_of(config.tolerance), **others}.items():
        for metric, limit in _limits_of(rule).items():
            if metric in general and (limit < general[metric] if find_metric(metric).at_least else limit > general[metric]):
                yield metric, source


def _accepted(config: RunConfig) -> Found:
    for number, entry in enumerate(config.accepted):
        path = ("accepted", str(number))
        missing = [key for key in ("match", "because", "until") if not getattr(entry, key)]
        if missing:
            yield (
                path,
                f"has no {', '.join(f'`{key}`' for key in missing)}: what is accepted is written down, with its last day",
            )
        if entry.until and _day(entry.until) is None:
            yield (*path, "until"), f'`{entry.until}` is not a day: write "YYYY-MM-DD"'


def _limit_groups(config: RunConfig) -> list[tuple[DottedPath, Limits]]:
    groups: list[tuple[DottedPath, Limits]] = [(("tolerance",), config.tolerance)]
    groups += [(("tolerance", "rules", str(number)), rule) for number, rule in enumerate(config.tolerance.rules)]
    return groups + [(("accepted", str(number)), entry) for number, entry in enumerate(config.accepted)]


def _limits(config: RunConfig) -> Found:
    for path, limits in _limit_groups(config):
        for metric, limit in _limits_of(limits).items():
            at_least = find_metric(metric).at_least
            if at_least and limit > 1:
                yield (*path, metric), f"means at least {limit:g}, which nothing reaches: a share of one such as 0.999 or 99.9%"
            elif not at_least and limit < 0:
                yield (*path, metric), f"means at most {limit:g}, which nothing reaches"
    if config.coverage.minimum > 1:
        yield ("coverage", "minimum"), "is a share of all records: at most 1"
    if config.coverage.elements > 1:
        yield ("coverage", "elements"), "is a share of the elements of what was compared: at most 1"


def _versions(config: RunConfig) -> Found:
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


def _own_metrics(config: RunConfig) -> Found:
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


def _executor(config: RunConfig) -> Found:
    executor = config.executor
    if executor.name == "local" and executor.address:
        yield ("executor", "address"), "is for executor=dask"
    for key in ("workers", "threads"):
        if getattr(executor, key) < 0:
            yield ("executor", key), "is a number; 0 is one a processor"


def _limits_of(limits: Limits | Rule | Accepted) -> dict[str, float]:
    ours = {metric: getattr(limits, metric) for metric in LIMITED if getattr(limits, metric) is not None}
    return {**ours, **limits.metrics}


def _item(data: Any, path: DottedPath) -> Mapping[str, Any]:
    for part in path:
        if isinstance(data, (list, tuple)) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            data = data.get(part) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _day(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if len(text) == len("2027-03-31") else None
    except ValueError:
        return None


# What must hold in ``capture`` beyond keys and types.

_RECORDED_AT = {BACKWARD: (MODULE, OPERATOR), GRADIENT: (MODULE,), OPTIMIZER: (MODULE,)}
_NARROWING = ("match", "class_", "operator", "level", "phase", "step", "rank")


def _capture(config: RunConfig) -> Iterator[tuple[DottedPath, str]]:
    """Yield ``(path, message)`` for everything that makes the section unusable."""
    capture = config.capture
    yield from _capture_rules(capture)
    yield from _ranks(config)
    yield from _phases(capture)
    if capture.keep_last < 0:
        yield ("capture", "keep_last"), "is a number of steps: 0 keeps all"
    given = next((side for side in ("reference", "target") if getattr(config, side).dump), "")
    if capture.detail == ESCALATING and given:
        yield ("capture", "detail"), f"escalating runs both sides a second time, and {given}.dump is given: use capture=tensors"
    if capture.detail == ESCALATING and capture.keep_last:
        yield ("capture", "keep_last"), "and escalating exclude each other: the second pass looks into steps of the first"


def _phases(capture: Capture) -> Iterator[tuple[DottedPath, str]]:
    """Refuse what no level that was asked for records: nothing of it would be compared, and nobody told."""
    for phase, levels in _RECORDED_AT.items():
        if phase in capture.phase and capture.level and not set(levels) & set(capture.level):
            told = f"{phase} is recorded at level {' or '.join(levels)}, and capture.level has {', '.join(capture.level)} only"
            yield ("capture", "phase"), f"{told}: capture.level=[{','.join((levels[0], *capture.level))}]"


def _capture_rules(capture: Capture) -> Iterator[tuple[DottedPath, str]]:
    last = ""  # the rule that takes everything, behind which none counts
    for number, rule in enumerate(capture.rules):
        path: DottedPath = ("capture", "rules", str(number))
        if last:
            yield path, f"never counts: {last} matches everything, and the first match counts"
        yield from ((path, text) for text in _contradictions(rule))
        if not 0 < rule.sample <= 1:
            yield (*path, "sample"), "is a share above 0 and at most 1, such as 1%"
        if not any(getattr(rule, key) for key in _NARROWING):
            last = f"rules[{number}]"
        yield from _slices(rule, path)


def _contradictions(rule: CaptureRule) -> Iterator[str]:
    parts = rule.slices or float(rule.sample) != 1.0
    if not (rule.detail or parts):
        yield "changes nothing: give it a detail (digest, statistics, sketch, tensors, none), slices or a sample"
    if rule.detail == "none" and parts:
        yield "keeps nothing of what it matches (detail: none), so slices and sample mean nothing"


def _slices(rule: CaptureRule, path: DottedPath) -> Iterator[tuple[DottedPath, str]]:
    if rule.slices:
        try:
            parse_slices(rule.slices)
        except ValueError as error:
            yield (*path, "slices"), str(error)


def _ranks(config: RunConfig) -> Iterator[tuple[DottedPath, str]]:
    named: list[tuple[DottedPath, tuple[int, ...]]] = [(("capture", "rank"), config.capture.rank)]
    named += [(("capture", "rules", str(number), "rank"), rule.rank) for number, rule in enumerate(config.capture.rules)]
    for path, wanted in named:
        if beyond := [rank for rank in wanted if rank > 0]:
            yield path, f"names rank {beyond[0]}; a side is one process, rank 0"

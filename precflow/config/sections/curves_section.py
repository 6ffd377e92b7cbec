"""Section ``curves`` of a recipe: what is wrong with it, and the patterns of log lines that ship with precflow."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from precflow import resources
from precflow.config.build import build_document
from precflow.config.documents import DottedPath, PathProblems, read
from precflow.config.schema import SIDES, Curve, CurveSource, RunConfig
from precflow.errors import ConfigError

LIMITS = tuple(field.name for field in dataclasses.fields(Curve) if field.name.endswith("_error"))
GROUPS = ("step", "value")
EXAMPLE = r"'step (?P<step>\d+).* loss (?P<value>\S+)'"
DEEPEST_PATTERN = 50
_MARKS = re.compile(r"\\.|\[\^?\]?|[\]()]", re.DOTALL)  # what tells where groups and classes of a pattern begin and end


def find_problems(config: RunConfig) -> PathProblems:
    """Yield curves that could not fail or cannot be found, and logs that nobody reads."""
    for name, curve in config.curves.items():
        yield from _check_limits(("curves", name), curve)
        if curve.steps < 0:
            yield ("curves", name, "steps"), f"is {curve.steps}; expected a number of steps, or 0 for all"
        yield from _check_source(("curves", name), curve)
        for side in ("reference", "target"):
            yield from _check_source(("curves", name, side), getattr(curve, side))
    for side in SIDES:
        if getattr(config, side).log and not config.curves:
            yield (side, "log"), "is read by nothing: `curves` is empty; +recipe=loss_curves reads the loss"
    if len(config.target.log) > 1:
        yield ("target", "log"), "has several logs: only the reference has repeats, which show how much it differs by itself"


def find_source(curve: Curve, side: str) -> CurveSource:
    """Return where a side has a curve: what is set for this side, else what is set for both.

    >>> find_source(Curve(column="loss", target=CurveSource(column="actor/pg_loss")), "target").column
    'actor/pg_loss'
    """
    own = getattr(curve, side)
    names = [field.name for field in dataclasses.fields(CurveSource)]
    return CurveSource(**{name: getattr(own, name) or getattr(curve, name) for name in names})


def _check_source(path: DottedPath, source: Curve | CurveSource) -> PathProblems:
    problem = find_pattern_problem(source.pattern) if source.pattern else ""
    if problem:
        yield (*path, "pattern"), problem
    file = PurePosixPath(source.file)
    if file.is_absolute() or ".." in file.parts:
        yield (*path, "file"), "expected the name of a file among those that the run leaves, without `..`"


def _check_limits(path: DottedPath, curve: Curve) -> PathProblems:
    limits = {limit: value for limit in LIMITS if (value := getattr(curve, limit)) is not None}
    if not curve.standard and not limits:
        yield path, f"has nothing that could fail: standard=loss_1_percent, or one of {', '.join(LIMITS)}"
    for limit, value in limits.items():
        if not 0 <= value < math.inf:
            yield (*path, limit), f"is {value:g}; expected a number of at least 0"


def patterns_folder() -> Path:
    """Return the folder of the shipped patterns."""
    return resources.directory("conf") / "curve"


@lru_cache(maxsize=1)
def pattern_names() -> tuple[str, ...]:
    """Return the names of the shipped patterns."""
    return tuple(sorted(file.stem for file in patterns_folder().glob("*.yaml")))


@dataclasses.dataclass(frozen=True)
class LogLines:
    """The lines of a kind of log, as a file of the folder describes them.

    Attributes:
        title: Whose log it is.
        source: Where the lines are known from.
        number: Regular expression of a number, for ``NUMBER``.
        any: That of a line with any name, which stands for ``NAME``.
        curves: Name of a curve -> the expression for it alone.
        counted: Steps may be counted where no line has one.
        redrawn: A progress bar is drawn several times at each step.
        first_epoch: Number of the first epoch of a run; ``None`` to tell it by the log.
    """

    title: str
    source: str
    number: str
    any: str
    curves: Mapping[str, str] = dataclasses.field(default_factory=dict)
    counted: bool = False
    redrawn: bool = False
    first_epoch: int | None = None


@lru_cache(maxsize=64)
def read_lines_of_log(name: str) -> LogLines:
    """Return the lines of a shipped pattern.

    Raises:
        ConfigError: The file is not usable.
    """
    document = read(patterns_folder() / f"{name}.yaml", "curve", name)
    lines, problems = build_document(document, LogLines)
    if lines is None or document.problems or problems:
        raise ConfigError(f"the pattern {name} of logs is not usable", problems=[*document.problems, *problems])
    return lines


def _count_nested(pattern: str) -> int:
    r"""Return how many groups of a regular expression lie inside each other; Python's parser recurses into each.

    >>> _count_nested(r"((a)(b))\(\("), _count_nested("[((]")
    (2, 0)
    """
    deepest = depth = 0
    in_class = False
    for mark in _MARKS.findall(pattern):
        if in_class:  # "]" at the very beginning of a class is one of its letters
            in_class = mark != "]"
        elif mark[0] == "[":
            in_class = True
        elif mark in {"(", ")"}:
            depth += 1 if mark == "(" else -1
            deepest = max(deepest, depth)
    return deepest


def find_pattern_problem(pattern: str) -> str:
    """Return what is wrong with a pattern, and what it has to look like; ``""`` if it can be used.

    >>> find_pattern_problem("megatron"), find_pattern_problem("(?P<step>[0-9]+) (?P<value>.*)")
    ('', '')
    >>> find_pattern_problem("loss (?P<value>.*)").partition(":")[0]
    'has no group step'
    """
    if pattern in pattern_names():
        return ""
    shipped = f"correct it, or name a shipped one: {', '.join(pattern_names())}"
    depth = _count_nested(pattern)
    if depth > DEEPEST_PATTERN:
        return f"has {depth} groups inside each other, expected at most {DEEPEST_PATTERN}; {shipped}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            expression = re.compile(pattern, re.MULTILINE)
    except (OverflowError, RecursionError) as error:  # a{1,99999999999}
        return f"is no regular expression that can be used: {error}; {shipped}"
    except re.error as error:
        place = f" at letter {error.pos + 1}" if error.pos is not None else ""
        return f"is no regular expression: {error.msg}{place}; {shipped}"
    missing = [f"no group {name}" for name in GROUPS if name not in expression.groupindex]
    return f"has {' and '.join(missing)}: write it like {EXAMPLE}" if missing else ""

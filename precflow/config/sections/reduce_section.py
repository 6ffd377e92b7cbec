"""Section ``reduce`` of a recipe: what ``precflow reduce`` may make smaller, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import RunConfig
from precflow.config.suggestions import did_you_mean
from precflow.config.trust import TARGET

BELOW = ("model", "inputs", "arguments")  # of section `workload`
_MOST_DIGITS = 10  # a longer one is an identifier


def find_problems(config: RunConfig) -> PathProblems:
    """Yield knobs that turn nothing: of a key elsewhere, without a number, or with none to try."""
    for name, knob in config.reduce.items():
        place = ("reduce", name)
        first, *path = knob.at.split(".")
        if first != "workload" or len(path) < 2 or path[0] not in BELOW or path[-1] == TARGET:
            below = ", ".join(f"workload.{one}" for one in BELOW)
            yield (*place, "at"), f"expected a key below {below}, such as workload.arguments.layers, got {knob.at or 'nothing'}"
            continue
        given = look_up(config, knob.at)
        value = knob.value if given is None else as_number(given)
        if given is not None and not value:
            yield (*place, "at"), f"{knob.at} is {given!r}, and a knob is a whole number"
        elif value == 0:
            near = did_you_mean(path[-1], list(getattr(config.workload, path[0])))
            yield (*place, "value"), f"is needed: the recipe does not set {knob.at}.{near}"
        elif knob.multiple_of < 1 or not 0 <= knob.smallest <= value:
            yield place, f"has nothing to try: from {knob.smallest} to {value} in multiples of {knob.multiple_of}"


def as_number(value: Any) -> int:
    """Return a whole number that is given as one or, as an argument of a script, as text; 0 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def look_up(config: RunConfig, dotted_key: str) -> Any:
    """Return the value of a key below ``workload``; ``None`` if the recipe does not set it. ``0`` is "the function's own"."""
    path: DottedPath = tuple(dotted_key.split(".")[1:])
    value: Any = getattr(config.workload, path[0])
    for part in path[1:]:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value if isinstance(value, bool) or value not in (0, "0") else None

"""Section ``reduce`` of a recipe: what ``precflow reduce`` may make smaller, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.agent import intake
from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import RunConfig
from precflow.config.suggestions import did_you_mean
from precflow.config.trust import TARGET

BELOW = ("model", "inputs", "arguments")  # of section `workload`
CONFIGURATION = "config.json"  # of a model, as transformers and diffusers write it
_WEIGHTS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"))
_LARGEST = 1_000_000  # bytes of a configuration
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
    """Return the value of a key below ``workload``; ``None`` if the recipe does not set it. ``0`` is "the function's own".

    A key goes on inside of a list (``workload.inputs.shape.2``) and of the model's configuration that a value names
    (``workload.model.config.num_hidden_layers``, where ``config`` is ``config.json``).
    """
    path: DottedPath = tuple(dotted_key.split(".")[1:])
    value: Any = getattr(config.workload, path[0])
    for part in path[1:]:
        value = read_configuration(value) if isinstance(value, str) else value
        if isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            return None
    return value if isinstance(value, bool) or value not in (0, "0") else None


def find_configuration(value: Any) -> Path | None:
    """Return the configuration of a model that a value names: a JSON file, or a folder with one and no weights.

    A folder with weights has those of one size, and nothing in it can be smaller.
    """
    if not isinstance(value, str) or not value:
        return None
    try:
        path = Path(value).expanduser()
        file = path / CONFIGURATION if path.is_dir() else path
        has_weights = path.is_dir() and any(each.suffix in _WEIGHTS for each in path.iterdir())
        return file if file.suffix == ".json" and file.is_file() and not has_weights else None
    except (OSError, ValueError, RuntimeError):  # a text that can be no path, or nobody may read
        return None


def read_configuration(value: Any) -> Mapping[str, Any]:
    """Return what the configuration says that a value names; nothing if it names none, or none that can be read."""
    file = find_configuration(value)
    try:
        plain = intake.read_json(str(file), _LARGEST) if file else {}
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}

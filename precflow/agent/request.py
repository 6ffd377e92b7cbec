"""The request: what the judge (or a person with an editor) asks an agent to do, checked before torch is imported."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from precflow.agent.contract import LEVELS, PHASES, REQUEST_SCHEMA
from precflow.agent.failures import AgentError

ACTIONS = ("environment", "dump")
ALGORITHMS = ("strict", "warn", "native")


class Determinism(NamedTuple):
    """Seeds and switches; ``seed`` is ``None`` where the workload seeds itself."""

    seed: Optional[int]
    algorithms: str
    random_numbers: str
    dropout: str
    repeat: bool


class Capture(NamedTuple):
    """What is recorded; ``budget`` in bytes, 0 is no limit."""

    level: Tuple[str, ...]
    phase: Tuple[str, ...]
    scope: Tuple[str, ...]
    step: Tuple[int, ...]
    detail: str
    budget: int


class Request(NamedTuple):
    """One checked request."""

    action: str
    side: str
    recipe: str
    declared: str
    output: str
    device: Tuple[str, ...]
    ci: bool
    dtype: str
    emulate: Dict[str, Any]
    workload: Dict[str, Any]
    determinism: Determinism
    capture: Capture
    trusted: Tuple[str, ...]
    import_paths: Tuple[str, ...]
    parent: Optional[int]


def read(path: str) -> Request:
    """Read and check a request file.

    Raises:
        AgentError: ``bad_request``: the file cannot be read, is not JSON, is of a newer schema, or has wrong values; all
            problems are named at once.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            plain = json.load(stream)
    except OSError as error:
        raise AgentError("bad_request", "cannot read the request %s: %s" % (path, error.strerror)) from error
    except ValueError as error:
        raise AgentError("bad_request", "%s is not JSON: %s" % (path, error)) from error
    if not isinstance(plain, dict):
        raise AgentError("bad_request", "%s holds a JSON %s; expected an object" % (path, type(plain).__name__))
    return parse(plain)


def parse(plain: Mapping[str, Any]) -> Request:
    """Check plain data and return it as a :class:`Request`.

    Raises:
        AgentError: ``bad_request``, with every problem.
    """
    schema = plain.get("schema")
    if schema != REQUEST_SCHEMA:
        newer = isinstance(schema, int) and schema > REQUEST_SCHEMA
        step = "pack the agent again with the precflow that wrote the request: precflow agent" if newer else ""
        raise AgentError("bad_request", "request schema %r; this agent reads schema %d" % (schema, REQUEST_SCHEMA), step)
    reader = _Reader(plain)
    request = _whole(reader)
    if reader.problems:
        raise AgentError("bad_request", "the request is not usable: " + "; ".join(reader.problems))
    return request


def _whole(reader: _Reader) -> Request:
    return Request(
        action=reader.choice("action", "", ACTIONS),
        side=reader.value("side", "target", str),
        recipe=reader.value("recipe", "", str),
        declared=reader.value("declared", "", str),
        output=reader.value("output", None, str),
        device=reader.texts("device", ("cpu",)),
        ci=reader.flag("ci", default=False),
        dtype=reader.value("dtype", "float32", str),
        emulate=reader.value("emulate", {"name": "", "rules": []}, dict),
        workload=reader.value("workload", {}, dict),
        determinism=_determinism(reader.section("determinism")),
        capture=_capture(reader.section("capture")),
        trusted=reader.texts("trusted", ()),
        import_paths=reader.texts("import_paths", ()),
        parent=reader.optional("parent", int),
    )


def _determinism(reader: _Reader) -> Determinism:
    seed = reader.plain.get("seed", 1234)
    return Determinism(
        seed=None if seed == "script" else reader.value("seed", 1234, int),
        algorithms=reader.choice("algorithms", "warn", ALGORITHMS),
        random_numbers=reader.choice("random_numbers", "cpu", ("cpu", "device")),
        dropout=reader.choice("dropout", "removed", ("removed", "kept")),
        repeat=reader.flag("repeat", default=True),
    )


def _capture(reader: _Reader) -> Capture:
    return Capture(
        level=reader.texts("level", ("module", "api"), LEVELS),
        phase=reader.texts("phase", ("forward",), PHASES),
        scope=reader.texts("scope", ("*",)),
        step=reader.listed("step", (0,), int),
        detail=reader.value("detail", "tensors", str),
        budget=reader.value("budget", 0, int),
    )


class _Reader:
    """Takes typed values out of plain data and collects what is wrong with them."""

    def __init__(self, plain: Mapping[str, Any], place: str = "", problems: Optional[List[str]] = None) -> None:
        self.plain = plain
        self.place = place
        self.problems: List[str] = [] if problems is None else problems

    def section(self, key: str) -> _Reader:
        """Return a reader of a nested object that shares this one's problems."""
        return _Reader(self.value(key, {}, dict), self.place + key + ".", self.problems)

    def value(self, key: str, default: Any, kind: type) -> Any:
        """Return the value of a key; ``None`` as default means that it must be there."""
        found = self.plain.get(key, default)
        wrong = not isinstance(found, kind) or (kind is int and isinstance(found, bool))
        return self._wrong(key, found, kind.__name__, kind()) if wrong else found

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        return bool(self.value(key, default, bool))

    def optional(self, key: str, kind: type) -> Any:
        """Return the value of a key that may be ``null`` or absent."""
        return None if self.plain.get(key) is None else self.value(key, None, kind)

    def choice(self, key: str, default: str, allowed: Tuple[str, ...]) -> str:
        """Return one of the allowed words."""
        found = self.plain.get(key, default)
        return str(found if found in allowed else self._wrong(key, found, "one of " + ", ".join(allowed), default))

    def texts(self, key: str, default: Tuple[str, ...], allowed: Tuple[str, ...] = ()) -> Tuple[str, ...]:
        """Return a tuple of words, each of them allowed."""
        found = self.listed(key, default, str)
        unknown = [word for word in found if allowed and word not in allowed]
        return self._wrong(key, unknown, "some of " + ", ".join(allowed), default) if unknown else found

    def listed(self, key: str, default: Tuple[Any, ...], kind: type) -> Tuple[Any, ...]:
        """Return a tuple of values of one type."""
        found = self.plain.get(key, default)
        good = isinstance(found, (list, tuple)) and all(isinstance(item, kind) for item in found)
        return tuple(found) if good else self._wrong(key, found, "a list of " + kind.__name__, default)

    def _wrong(self, key: str, found: Any, expected: str, instead: Any) -> Any:
        self.problems.append("%s%s is %r, expected %s" % (self.place, key, found, expected))
        return instead

"""The request: what the judge (or a person with an editor) asks an agent to do, checked before torch is imported."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from precflow.agent import intake, redaction
from precflow.agent.contract import DETAIL_FACTS, DETAILS, LARGEST, LEVELS, NONE, PHASES, REQUEST_SCHEMA
from precflow.agent.failures import AgentError
from precflow.agent.sampling import parse_slices
from precflow.agent.selection import Rule, Scope

ACTIONS = ("environment", "dump", "rehearse")
ALGORITHMS = ("strict", "warn", "native")
_SHOWN = 200  # letters of a wrong value that a message repeats


class Determinism(NamedTuple):
    """Seeds and switches; ``seed`` is ``None`` where the workload seeds itself."""

    seed: Optional[int]
    algorithms: str
    random_numbers: str
    dropout: str
    repeat: bool


class Capture(NamedTuple):
    """What is recorded.

    Attributes:
        level: Levels.
        phase: Phases.
        scope: Patterns of module names; nothing outside of them is recorded.
        step: Numbers of the steps.
        rank: Ranks; none given is every one.
        detail: What is kept where no rule says otherwise.
        rules: First match wins.
        budget: Most bytes that the dump may take, 0 is no limit.
        keep_last: How many steps are kept at most, the last ones; 0 keeps all.
        compress: Compress shards where it pays.
        fine: Sketches keep the high and the low part of every value apart.
        fills: Further constants that masks are made of, beside ``contract.FILLS``.
    """

    level: Tuple[str, ...]
    phase: Tuple[str, ...]
    scope: Tuple[str, ...]
    step: Tuple[int, ...]
    rank: Tuple[int, ...]
    detail: str
    rules: Tuple[Rule, ...]
    budget: int
    keep_last: int
    compress: bool
    fine: bool
    fills: Tuple[float, ...]

    def selection(self, *, again: bool = False) -> Scope:
        """Return what answers for every call; ``again`` asks for no more than tells equal bits from others.

        Beside statistics a sketch stays one: it answers for the statistics of the same tensor, the first time and again.
        """
        details = {self.detail, *[rule.detail for rule in self.rules]}
        same = {NONE}
        if "statistics" in details:
            same |= {"statistics", *[name for name, detail in DETAIL_FACTS.items() if "statistics" in detail.covers]}
        brief = {detail: detail if detail in same or not again else "digest" for detail in details}
        return Scope(
            self.scope,
            detail=brief[self.detail],
            rules=[rule._replace(detail=brief[rule.detail]) if rule.detail else rule for rule in self.rules],
            level=self.level,
            phase=self.phase,
            step=self.step,
            rank=self.rank,
        )

    def plain(self) -> Dict[str, Any]:
        """Return what a header says about it."""
        return {**self._asdict(), "rules": [rule.plain() for rule in self.rules]}


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
    resume: bool


def read(path: str) -> Request:
    """Read and check a request file.

    Raises:
        AgentError: ``bad_request``: the file cannot be read, is not JSON, is of a newer schema, or has wrong values; all
            problems are named at once.
    """
    try:
        plain = intake.read_json(path)
    except OSError as error:
        raise AgentError("bad_request", "cannot read the request %s: %s" % (path, error.strerror)) from error
    except ValueError as error:
        raise AgentError("bad_request", "%s is not JSON: %s" % (path, error)) from error
    if not isinstance(plain, dict):
        raise AgentError("bad_request", "%s holds a JSON %s; expected an object" % (path, type(plain).__name__))
    return parse(_with_secrets(plain, path))


def _with_secrets(plain: Dict[str, Any], path: str) -> Dict[str, Any]:
    """Return the request with the secrets that the judge handed over beside it; from now on they are written nowhere.

    Raises:
        AgentError: ``bad_request``: one of them is missing.
    """
    secrets = redaction.handed_over(os.environ)
    os.environ.pop(redaction.VARIABLE, None)  # what the workload starts needs none of it
    redaction.learn(os.environ)
    for secret in secrets.values():
        redaction.learn(secret, name="SECRET" if redaction.text(secret) == secret else "")  # of an address only its part
    workload = redaction.put_back(plain.get("workload"), secrets, "workload")
    missing = list(redaction.placeholders(workload, "workload"))
    if missing:
        message = "%s has no %s: a secret is not written down" % (path, ", ".join(missing))
        example = json.dumps(dict.fromkeys(missing, "..."))
        raise AgentError("bad_request", message, "set the variable %s='%s'" % (redaction.VARIABLE, example))
    return {**plain, "workload": workload} if "workload" in plain else plain


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
        resume=reader.flag("resume", default=False),
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
        rank=reader.listed("rank", (), int),
        detail=reader.choice("detail", "tensors", DETAILS),
        rules=tuple(_rule(each) for each in reader.sections("rules")),
        budget=reader.value("budget", 0, int),
        keep_last=reader.value("keep_last", 0, int),
        compress=reader.flag("compress", default=False),
        fine=reader.flag("fine", default=False),
        fills=reader.numbers("fills"),
    )


def _rule(reader: _Reader) -> Rule:
    return Rule(
        match=reader.texts("match", ()),
        class_name=reader.texts("class", ()),
        operator=reader.texts("operator", ()),
        level=reader.texts("level", (), LEVELS),
        phase=reader.texts("phase", (), PHASES),
        step=reader.listed("step", (), int),
        rank=reader.listed("rank", (), int),
        detail=reader.choice("detail", "", ("", NONE, *DETAILS)),
        slices=reader.index("slices"),
        sample=reader.share("sample"),
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

    def sections(self, key: str) -> List[_Reader]:
        """Return a reader of each object of a list."""
        found = self.listed(key, (), dict)
        return [_Reader(each, "%s%s[%d]." % (self.place, key, number), self.problems) for number, each in enumerate(found)]

    def index(self, key: str) -> str:
        """Return an index into a tensor, as text; ``""`` where there is none."""
        found = str(self.value(key, "", str))
        try:
            return found if not found or parse_slices(found) else ""
        except ValueError:
            return str(self._wrong(key, found, "an index such as [0, :, -1]", ""))

    def share(self, key: str) -> float:
        """Return a share above 0 and at most 1."""
        found = self.plain.get(key, 1.0)
        good = isinstance(found, (int, float)) and not isinstance(found, bool) and 0 < found <= 1
        return float(found if good else self._wrong(key, found, "a share above 0 and at most 1", 1.0))

    def value(self, key: str, default: Any, kind: type) -> Any:
        """Return the value of a key; ``None`` as default means that it must be there."""
        found = self.plain.get(key, default)
        return found if _fits(found, kind) else self._wrong(key, found, kind.__name__, kind())

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

    def numbers(self, key: str) -> Tuple[float, ...]:
        """Return a tuple of finite numbers that are not 0."""
        found = self.plain.get(key, ())
        good = isinstance(found, (list, tuple)) and all(
            isinstance(item, (int, float)) and not isinstance(item, bool) and item and abs(item) <= LARGEST["float64"]
            for item in found
        )
        return tuple(map(float, found)) if good else self._wrong(key, found, "a list of finite numbers other than 0", ())

    def texts(self, key: str, default: Tuple[str, ...], allowed: Tuple[str, ...] = ()) -> Tuple[str, ...]:
        """Return a tuple of words, each of them allowed."""
        found = self.listed(key, default, str)
        unknown = [word for word in found if allowed and word not in allowed]
        return self._wrong(key, unknown, "some of " + ", ".join(allowed), default) if unknown else found

    def listed(self, key: str, default: Tuple[Any, ...], kind: type) -> Tuple[Any, ...]:
        """Return a tuple of values of one type."""
        found = self.plain.get(key, default)
        good = isinstance(found, (list, tuple)) and all(_fits(item, kind) for item in found)
        return tuple(found) if good else self._wrong(key, found, "a list of " + kind.__name__, default)

    def _wrong(self, key: str, found: Any, expected: str, instead: Any) -> Any:
        shown = repr(found)
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
        self.problems.append("%s%s is %s, expected %s" % (self.place, key, shown, expected))
        return instead


def _fits(value: Any, kind: type) -> bool:
    """Tell whether a value is of a type; an integer has to be one that 64 bits hold."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, kind)

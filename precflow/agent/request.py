"""The request: a JSON file in which the judge (or a person) says what an agent shall do; checked before torch is imported."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from precflow.agent import intake, redaction
from precflow.agent.contract import (
    CHECKED,
    COMPILED_CHOICES,
    DETAIL_FACTS,
    DETAILS,
    DYNAMIC,
    EAGER,
    EXPORTERS,
    FORWARD,
    KEPT,
    LARGEST,
    LEVELS,
    MIXED_LEVELS,
    MIXED_OPERATOR_TYPES,
    MIXED_TYPES,
    NOISES,
    NONE,
    OPTIMISATIONS,
    PHASES,
    RECORDED,
    REQUEST_SCHEMA,
    RUNTIMES,
    SHIPPED,
    UNCHECKED,
    WEIGHTS_CHOICES,
    WHATIF_KINDS,
    WHEN_NEEDED,
    is_scale,
)
from precflow.agent.failures import AgentError
from precflow.agent.sampling import parse_slices
from precflow.agent.selection import DetailRule, Selection

ACTIONS = ("environment", "dump", "plain", "as_is", "noise", "whatif", "rehearse", "evaluate", "replay", "unary", "machine")
ALGORITHMS = ("strict", "warn", "native")
_FOLDER = re.compile(r"[A-Za-z0-9_]{1,80}")
_SHOWN = 200  # characters of a wrong value that a message repeats


class DeterminismSection(NamedTuple):
    """Section ``determinism``: seeds and switches; ``seed`` is ``None`` if the workload seeds itself.

    ``data`` is ``recorded`` if the target is given the reference's batches.
    ``observer`` is ``checked`` if the workload is also run without capture, and compared.
    """

    seed: Optional[int]
    algorithms: str
    random_numbers: str
    dropout: str
    repeat: bool
    observer: str = UNCHECKED
    data: str = "script"


class CaptureSection(NamedTuple):
    """Section ``capture``: what is recorded.

    Attributes:
        level: Levels.
        phase: Phases.
        scope: Patterns of module names; nothing outside of them is recorded.
        step: Numbers of the steps.
        rank: Ranks; empty means all.
        detail: What is kept of a call unless a rule says otherwise.
        rules: The first rule that matches a call counts.
        budget: Largest size of the dump in bytes; 0 means no limit.
        keep_last: Number of steps that are kept, the last ones; 0 keeps all.
        fine: Sketches keep the high and the low part of every value apart.
        weights: ``kept`` or ``left_out``: whether detail ``tensors`` stores the weights that go into a call.
        fills: Constants that masks are filled with, besides those of ``contract.FILLS``.
        compiled: One of ``contract.COMPILED_CHOICES``.
    """

    level: Tuple[str, ...] = ("module", "api")
    phase: Tuple[str, ...] = (FORWARD,)
    scope: Tuple[str, ...] = ("*",)
    step: Tuple[int, ...] = (0,)
    rank: Tuple[int, ...] = ()
    detail: str = "tensors"
    rules: Tuple[DetailRule, ...] = ()
    budget: int = 0
    keep_last: int = 0
    fine: bool = False
    weights: str = KEPT
    fills: Tuple[float, ...] = ()
    compiled: str = ""

    def selection(self, *, repeat: bool = False) -> Selection:
        """Return what decides about every call.

        Args:
            repeat: For the second run, which only has to show whether the bits are the same: tensors need no more than a
                digest then. If some calls have ``statistics`` (which are compared by their marks), sketches stay too: a tensor
                in both details is measured once, as a sketch, and its mark must come from the same measurement both times.
        """
        details = {self.detail, *[rule.detail for rule in self.rules]}
        unchanged = {NONE}
        if "statistics" in details:
            unchanged |= {"statistics", *[name for name, detail in DETAIL_FACTS.items() if "statistics" in detail.covers]}
        wanted = {detail: detail if detail in unchanged or not repeat else "digest" for detail in details}
        return Selection(
            self.scope,
            detail=wanted[self.detail],
            rules=[rule._replace(detail=wanted[rule.detail]) if rule.detail else rule for rule in self.rules],
            level=self.level,
            phase=self.phase,
            step=self.step,
            rank=self.rank,
        )

    def to_plain(self) -> Dict[str, Any]:
        """Return the section as plain data for the header of a dump."""
        return {**self._asdict(), "rules": [rule.to_plain() for rule in self.rules]}


class PrecisionSection(NamedTuple):
    """Section ``mixed_precision``: what runs in which type.

    Attributes:
        level: ``""`` (everything in the run's type), ``O1`` or ``O2``.
        dtype: The 16-bit type of the level.
        float32_modules: Patterns of module names that stay in float32.
        operators: Torch function -> type that it runs in.
        loss_scale: ``""``, ``dynamic``, or a number as text.
        growth_interval: Steps after which a dynamic scale doubles.
    """

    level: str = ""
    dtype: str = "bfloat16"
    float32_modules: Tuple[str, ...] = ()
    operators: Mapping[str, str] = {}
    loss_scale: str = ""
    growth_interval: int = 2000


class ConversionSection(NamedTuple):
    """Section ``conversion``: the model runs in another runtime than torch.

    Attributes:
        runtime: ``""`` (torch) or ``onnxruntime``.
        file: A graph that exists; ``""``: exported.
        exporter: ``dynamo`` or ``legacy``.
        opset: Version of ONNX's operators that it is exported to.
        optimise: How far ONNX Runtime optimises the graph.
        provider: Its name of the device.
        keep_float32: Names of nodes and operators that stay in float32 in a graph in float16.
    """

    runtime: str = ""
    file: str = ""
    exporter: str = "dynamo"
    opset: int = 20
    optimise: str = "extended"
    provider: str = "CPUExecutionProvider"
    keep_float32: Tuple[str, ...] = ()


class ArmChange(NamedTuple):
    """One thing that an arm of a what-if changes.

    Attributes:
        kind: One of ``contract.WHATIF_KINDS``.
        value: What it is changed to; for ``arguments`` identity text -> name -> text of the value.
        records: Identity texts of the calls that are changed, none for a change of the whole run. Without an operator a text
            names a module: every operator inside it is changed.
    """

    kind: str
    value: Any
    records: Tuple[str, ...]


class Arm(NamedTuple):
    """One run of a what-if: the name of its folder, and what is changed; nothing in the arm ``unchanged``."""

    name: str
    changes: Tuple[ArmChange, ...]


class Request(NamedTuple):
    """One checked request; ``arms`` and ``rounds`` (timed runs of each arm) are for action ``whatif``.

    ``ranks`` is the number of processes that run the workload together.
    """

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
    determinism: DeterminismSection
    capture: CaptureSection
    trusted: Tuple[str, ...]
    import_paths: Tuple[str, ...]
    parent: Optional[int]
    resume: bool
    first_run: str  # folder of the dump of an earlier run of a script, which this one is compared with
    batches: str  # folder of the reference's dump, whose batches the target is given
    plain_run: str  # folder of an earlier run of a script without hooks (action ``plain``), the same
    noise: str = ""  # for action ``noise`` of a script, which has one disturbance in each process: one of ``contract.NOISES``
    inputs: str = ""  # file with the reference's inputs of parts of the model, which these are given in place of their own
    choices: str = ""  # file with the reference's choices, which the run is given in place of its own
    arms: Tuple[Arm, ...] = ()
    rounds: int = 0
    parts: Tuple[str, ...] = ()  # names of modules that the workload's model must have
    ranks: int = 1
    mixed_precision: PrecisionSection = PrecisionSection()
    conversion: ConversionSection = ConversionSection()


def runs_eagerly(request: Request) -> bool:
    """Tell whether compiled modules and functions run as they were written, so that their inside is seen."""
    otherwise = request.workload.get("compile", EAGER) if request.workload.get("script") else KEPT
    return (request.capture.compiled or otherwise) == EAGER


def read(path: str) -> Request:
    """Read and check a request file.

    Raises:
        AgentError: ``bad_request``: the file cannot be read, is not JSON, has a newer schema, or wrong values; lists all
            problems at once.
    """
    try:
        plain = intake.read_json(path)
    except OSError as error:
        raise AgentError("bad_request", "cannot read the request %s: %s" % (path, error.strerror)) from error
    except ValueError as error:
        raise AgentError("bad_request", "%s is not JSON: %s" % (path, error)) from error
    if not isinstance(plain, dict):
        raise AgentError("bad_request", "%s holds a JSON %s; expected an object" % (path, type(plain).__name__))
    return parse(_insert_secrets(plain, path))


def _insert_secrets(plain: Dict[str, Any], path: str) -> Dict[str, Any]:
    """Return the request with its secrets, and make sure that they are never written anywhere.

    A secret is not in the request file: there stands a placeholder, and the judge passes the values in an environment variable.

    Raises:
        AgentError: ``bad_request``: a secret is missing.
    """
    secrets = redaction.read_handed_over(os.environ)
    os.environ.pop(redaction.VARIABLE, None)  # processes that the workload starts must not inherit them
    redaction.learn(os.environ)
    for secret in secrets.values():
        shown = redaction.redact_text(secret)
        redaction.learn(secret, name="SECRET" if shown == secret else "")  # of a URL only the secret part
    workload = redaction.put_back(plain.get("workload"), secrets, "workload")
    missing = list(redaction.find_placeholders(workload, "workload"))
    if missing:
        message = "%s has no %s: secrets are not stored in a request" % (path, ", ".join(missing))
        example = json.dumps(dict.fromkeys(missing, "..."))
        raise AgentError("bad_request", message, "set the variable %s='%s'" % (redaction.VARIABLE, example))
    return {**plain, "workload": workload} if "workload" in plain else plain


def parse(plain: Mapping[str, Any]) -> Request:
    """Check plain data and return it as a :class:`Request`.

    Raises:
        AgentError: ``bad_request``; lists all problems at once.
    """
    schema = plain.get("schema")
    if schema != REQUEST_SCHEMA:
        newer = isinstance(schema, int) and schema > REQUEST_SCHEMA
        step = "pack the agent again with the precflow that wrote the request: precflow agent" if newer else ""
        raise AgentError("bad_request", "request schema %r; this agent reads schema %d" % (schema, REQUEST_SCHEMA), step)
    reader = _Reader(plain)
    request = Request(
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
        determinism=_parse_determinism(reader.section("determinism")),
        capture=_parse_capture(reader.section("capture")),
        trusted=reader.texts("trusted", ()),
        import_paths=reader.texts("import_paths", ()),
        parent=reader.optional("parent", int),
        resume=reader.flag("resume", default=False),
        first_run=reader.value("first_run", "", str),
        batches=reader.value("batches", "", str),
        plain_run=reader.value("plain_run", "", str),
        noise=reader.choice("noise", "", ("", *NOISES)),
        inputs=reader.value("inputs", "", str),
        choices=reader.value("choices", "", str),
        arms=tuple(_parse_arm(section) for section in reader.sections("arms")),
        rounds=reader.value("rounds", 0, int),
        parts=reader.texts("parts", ()),
        ranks=reader.positive("ranks", 1),
        mixed_precision=_parse_precision(reader.section("mixed_precision")),
        conversion=_parse_conversion(reader.section("conversion")),
    )
    if reader.problems:
        raise AgentError("bad_request", "the request is not usable: " + "; ".join(reader.problems))
    return request


def describe_code(request: Request) -> List[str]:
    """Return what code a request has this process run, and for whom it trusts: a request is no data as a recipe is."""
    found: List[str] = []
    script = request.workload.get("script")
    if script:
        arguments = redaction.redact(request.workload.get("arguments") or {})
        found.append("runs the script %s%s" % (script, " with arguments %s" % json.dumps(arguments) if arguments else ""))
    parts = (request.workload.get(part) for part in ("model", "inputs", "loss", "optimizer"))
    targets = [str(part["_target_"]) for part in parts if isinstance(part, dict) and "_target_" in part]
    called = [target for target in targets if not target.startswith(SHIPPED)]
    if called and not script:
        found.append("calls %s" % ", ".join(called))
    if found and request.trusted:
        found[-1] += "; it trusts %s, and every function in it" % ", ".join(request.trusted)
    return ["this request " + text for text in found]


def _parse_determinism(reader: _Reader) -> DeterminismSection:
    seed = reader.plain.get("seed", 1234)
    if reader.plain.get("algorithms") == WHEN_NEEDED:  # the judge asks again, with `warn`, if two runs differ
        reader.plain = {**reader.plain, "algorithms": "native"}
    return DeterminismSection(
        seed=None if seed == "script" else reader.value("seed", 1234, int),
        algorithms=reader.choice("algorithms", "warn", ALGORITHMS),
        random_numbers=reader.choice("random_numbers", "cpu", ("cpu", "device")),
        dropout=reader.choice("dropout", "removed", ("removed", "kept")),
        repeat=reader.flag("repeat", default=True),
        data=reader.choice("data", "script", ("script", RECORDED)),
        observer=reader.choice("observer", UNCHECKED, (UNCHECKED, CHECKED)),
    )


def _parse_precision(reader: _Reader) -> PrecisionSection:
    scale = str(reader.value("loss_scale", "", str))
    if scale not in ("", DYNAMIC) and not is_scale(scale):
        reader.note_problem("loss_scale", scale, "dynamic, or a number above 0", "")
    operators = reader.value("operators", {}, dict)
    if not all(dtype in MIXED_OPERATOR_TYPES for dtype in operators.values()):
        reader.note_problem("operators", operators, "functions, each with one of " + ", ".join(MIXED_OPERATOR_TYPES), {})
    return PrecisionSection(
        level=reader.choice("level", "", ("", *MIXED_LEVELS)),
        dtype=reader.choice("dtype", "bfloat16", MIXED_TYPES),
        float32_modules=reader.texts("float32_modules", ()),
        operators=operators,
        loss_scale=scale,
        growth_interval=reader.positive("growth_interval", 2000),
    )


def _parse_conversion(reader: _Reader) -> ConversionSection:
    return ConversionSection(
        runtime=reader.choice("runtime", "", RUNTIMES),
        file=reader.value("file", "", str),
        exporter=reader.choice("exporter", "dynamo", EXPORTERS),
        opset=reader.positive("opset", 20),
        optimise=reader.choice("optimise", "extended", OPTIMISATIONS),
        provider=reader.value("provider", "CPUExecutionProvider", str),
        keep_float32=reader.texts("keep_float32", ()),
    )


def _parse_capture(reader: _Reader) -> CaptureSection:
    return CaptureSection(
        level=reader.texts("level", ("module", "api"), LEVELS),
        phase=reader.texts("phase", ("forward",), PHASES),
        scope=reader.texts("scope", ("*",)),
        step=reader.list_of("step", (0,), int),
        rank=reader.list_of("rank", (), int),
        detail=reader.choice("detail", "tensors", DETAILS),
        rules=tuple(_parse_rule(section) for section in reader.sections("rules")),
        budget=reader.value("budget", 0, int),
        keep_last=reader.value("keep_last", 0, int),
        fine=reader.flag("fine", default=False),
        weights=reader.choice("weights", KEPT, WEIGHTS_CHOICES),
        fills=reader.numbers("fills"),
        compiled=reader.choice("compiled", "", COMPILED_CHOICES),
    )


def _parse_rule(reader: _Reader) -> DetailRule:
    return DetailRule(
        match=reader.texts("match", ()),
        class_name=reader.texts("class", ()),
        operator=reader.texts("operator", ()),
        level=reader.texts("level", (), LEVELS),
        phase=reader.texts("phase", (), PHASES),
        step=reader.list_of("step", (), int),
        rank=reader.list_of("rank", (), int),
        detail=reader.choice("detail", "", ("", NONE, *DETAILS)),
        slices=reader.index("slices"),
        sample=reader.share("sample"),
    )


def _parse_arm(reader: _Reader) -> Arm:
    name = reader.value("name", None, str)
    if not _FOLDER.fullmatch(name):
        reader.note_problem("name", name, "letters, digits and _", "")
    return Arm(
        name,
        tuple(
            ArmChange(
                kind=section.choice("kind", "", tuple(WHATIF_KINDS)),
                value=section.plain.get("value"),
                records=section.texts("records", ()),
            )
            for section in reader.sections("changes")
        ),
    )


class _Reader:
    """Reads typed values from plain data and collects all problems, instead of stopping at the first.

    Args:
        plain: The data of one section.
        place: Where the section stands in the request, such as ``capture.rules[0].``.
        problems: List that the problems are added to.
    """

    def __init__(self, plain: Mapping[str, Any], place: str = "", problems: Optional[List[str]] = None) -> None:
        self.plain = plain
        self.place = place
        self.problems: List[str] = [] if problems is None else problems

    def section(self, key: str) -> _Reader:
        """Return a reader of a nested object that shares this one's problems."""
        return _Reader(self.value(key, {}, dict), self.place + key + ".", self.problems)

    def sections(self, key: str) -> List[_Reader]:
        """Return a reader of each object of a list."""
        objects = self.list_of(key, (), dict)
        return [_Reader(each, "%s%s[%d]." % (self.place, key, number), self.problems) for number, each in enumerate(objects)]

    def index(self, key: str) -> str:
        """Return an index into a tensor, as text; ``""`` if there is none."""
        given = str(self.value(key, "", str))
        try:
            return given if not given or parse_slices(given) else ""
        except ValueError:
            return str(self.note_problem(key, given, "an index such as [0, :, -1]", ""))

    def share(self, key: str) -> float:
        """Return a share above 0 and at most 1."""
        given = self.plain.get(key, 1.0)
        good = isinstance(given, (int, float)) and not isinstance(given, bool) and 0 < given <= 1
        return float(given if good else self.note_problem(key, given, "a share above 0 and at most 1", 1.0))

    def value(self, key: str, default: Any, kind: type) -> Any:
        """Return the value of a key; with ``None`` as default, the key is required."""
        given = self.plain.get(key, default)
        return given if _fits(given, kind) else self.note_problem(key, given, kind.__name__, kind())

    def positive(self, key: str, default: int) -> int:
        """Return a whole number of at least 1."""
        given = self.value(key, default, int)
        return given if given >= 1 else int(self.note_problem(key, given, "a number of at least 1", default))

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        return bool(self.value(key, default, bool))

    def optional(self, key: str, kind: type) -> Any:
        """Return the value of a key that may be ``null`` or absent."""
        return None if self.plain.get(key) is None else self.value(key, None, kind)

    def choice(self, key: str, default: str, allowed: Tuple[str, ...]) -> str:
        """Return one of the allowed words."""
        given = self.plain.get(key, default)
        return str(given if given in allowed else self.note_problem(key, given, "one of " + ", ".join(allowed), default))

    def numbers(self, key: str) -> Tuple[float, ...]:
        """Return a tuple of finite numbers that are not 0."""
        given = self.plain.get(key, ())
        good = isinstance(given, (list, tuple)) and all(
            isinstance(item, (int, float)) and not isinstance(item, bool) and item and abs(item) <= LARGEST["float64"]
            for item in given
        )
        return tuple(map(float, given)) if good else self.note_problem(key, given, "a list of finite numbers other than 0", ())

    def texts(self, key: str, default: Tuple[str, ...], allowed: Tuple[str, ...] = ()) -> Tuple[str, ...]:
        """Return a tuple of words, each of them allowed."""
        given = self.list_of(key, default, str)
        unknown = [word for word in given if allowed and word not in allowed]
        return self.note_problem(key, unknown, "some of " + ", ".join(allowed), default) if unknown else given

    def list_of(self, key: str, default: Tuple[Any, ...], kind: type) -> Tuple[Any, ...]:
        """Return a tuple of values of one type."""
        given = self.plain.get(key, default)
        good = isinstance(given, (list, tuple)) and all(_fits(item, kind) for item in given)
        return tuple(given) if good else self.note_problem(key, given, "a list of " + kind.__name__, default)

    def note_problem(self, key: str, value: Any, expected: str, instead: Any) -> Any:
        """Note a problem and return what stands in for the wrong value, so that the other keys can be checked too."""
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
        self.problems.append("%s%s is %s, expected %s" % (self.place, key, shown, expected))
        return instead


def _fits(value: Any, kind: type) -> bool:
    """Tell whether a value has a type. ``True`` is no integer here, and integers must fit into 64 bits."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, kind)

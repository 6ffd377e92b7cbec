"""Rule files: one YAML file a rule, read and checked all at once before any of them is used.

A team's rules are data from somebody else: their templates are looked through for what could run on (loops, calls, powers),
and what they multiply and join is bounded, so that each takes no more than its text and its evidence.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateSyntaxError, meta, nodes
from jinja2.environment import TemplateExpression
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from precflow.config.documents import Document, dotted, read
from precflow.config.documents import shown as shown_path
from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT, shown
from precflow.diagnosis.findings import CERTAINTIES
from precflow.errors import ConfigError, Problem

ABOUT = ("run", "suspect", "unexplained")
RANKS = ("before", "normal", "after")
"""Among findings of equal certainty: what comes before the graph's order, in it, and after it."""
_CONDITIONS = ("when", "certain_when")
_TEXTS = ("title", "where", "why", "fix", "try_it")
_LISTS = ("evidence", "sources")
_IDENTIFIER = re.compile(r"PF\d{3}")
_OF_TEAM = re.compile(r"(?!PF\d)[A-Z]{2,8}\d{3}")
_LONGEST = 4000  # characters of a template
_LONGEST_MADE = 1_000_000  # characters of what one join or sum makes
_FILTERS = frozenset(
    "abs capitalize default first float int join last length lower max min round shown sort string sum unique upper".split()
)
_METHODS = frozenset("endswith split startswith".split())
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.CondExpr, nodes.Const, nodes.Name, nodes.List),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Getattr, nodes.Getitem, nodes.Slice),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Filter, nodes.Test, nodes.Call, nodes.Tuple),
    *(nodes.Concat,),
)


@dataclass(frozen=True)
class Rule:
    """One rule. Texts are Jinja templates, conditions Jinja expressions, both over the names of ``EVIDENCE``.

    Attributes:
        id: ``PFnnn``: 1 environment, 2 operators, 3 attention, 4 weights and data, 5 numerics.
        title: One line: what is wrong.
        when: Condition that makes it apply.
        why: Why this happens.
        fix: What to do.
        certainty: How sure it is that this explains the difference: ``certain``, ``likely`` or ``possible``.
        certain_when: Condition that raises it to ``certain``; ``""`` for none.
        about: ``run`` (once), ``suspect`` (for each suspect) or ``unexplained`` (for suspects that no other rule explains).
        where: Module and operator, or a setting.
        try_it: Overrides that show whether it helps.
        evidence: Names to show, in order.
        sources: Where the knowledge comes from.
        rank: ``before``, ``normal`` or ``after`` others of the same certainty.
        explains: Whether a suspect counts as explained by it.
    """

    id: str
    title: str
    when: str
    why: str
    fix: str
    certainty: str = "possible"
    certain_when: str = ""
    about: str = "suspect"
    where: str = "{{ name }}"
    try_it: str = ""
    evidence: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    rank: str = "normal"
    explains: bool = True


_KEYS = {one.name: one for one in fields(Rule)}
_NEEDED = tuple(name for name, one in _KEYS.items() if one.default is MISSING)


def load(folders: Sequence[Path], team: Sequence[Path] = ()) -> list[Rule]:
    """Read every rule file of the folders, sorted by id.

    Args:
        folders: Of precflow's own rules.
        team: Of a team's rules, whose ids have a prefix of their own.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    files: dict[str, list[Path]] = {}
    rules: list[Rule] = []
    problems: list[Problem] = []
    for path in (path for folder in (*folders, *team) for path in sorted(folder.glob("*.yaml"))):
        found, rule = check(path, of_team=path.parent in team)
        problems += found
        if rule is not None:
            rules.append(rule)
            files.setdefault(rule.id, []).append(path)
    problems += [
        Problem(", ".join(map(shown_path, paths)), one, "stands in more than one file")
        for one, paths in files.items()
        if paths[1:]
    ]
    if problems:
        raise ConfigError(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in rule files",
            problems=problems,
            next_step="correct the files; no rule was used",
        )
    return sorted(rules, key=lambda rule: rule.id)


def check(path: Path, *, of_team: bool) -> tuple[list[Problem], Rule | None]:
    """Return what is wrong with one file, each with its line, and its rule where nothing is."""
    document = read(path, "rule", path.stem)
    problems = [Problem(one.place, one.key or path.stem, one.message) for one in document.problems]
    problems += [] if problems else list(_problems(document, _OF_TEAM if of_team else _IDENTIFIER))
    return problems, None if problems else _rule(document.data)


@functools.lru_cache(maxsize=512)
def expression(condition: str) -> TemplateExpression:
    """Return a compiled condition."""
    return _sandbox().compile_expression(condition)


@functools.lru_cache(maxsize=1024)
def template(source: str) -> Template:
    """Return a compiled text."""
    return _sandbox().from_string(source)


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which nothing grows beyond what a sentence needs."""

    intercepted_binops = frozenset(["*", "%", "+"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute; texts and lists are not multiplied or formatted, and sums of them are bounded.

        Raises:
            SecurityError: They are, or they are not.
        """
        grown = [value for value in (left, right) if isinstance(value, (str, bytes, list, tuple))]
        if grown and operator != "+":
            raise SecurityError(f"{operator} is for numbers")
        if sum(len(value) for value in grown) > _LONGEST_MADE:
            raise SecurityError(f"+ makes more than {_LONGEST_MADE} characters")
        return super().call_binop(context, operator, left, right)


def _join(values: Sequence[Any], between: str = "") -> str:
    """Join texts as Jinja's filter does.

    Raises:
        SecurityError: It would be longer than any finding.
    """
    texts = [str(value) for value in values]
    if sum(map(len, texts)) + len(between) * len(texts) > _LONGEST_MADE:
        raise SecurityError(f"join makes more than {_LONGEST_MADE} characters")
    return between.join(texts)


def _round(value: float, digits: int = 0) -> float:
    """Round to so many digits behind the point, as Jinja's filter does."""
    return round(value, min(max(digits, -300), 300))


@functools.lru_cache(maxsize=1)
def _sandbox() -> _Sandbox:
    sandbox = _Sandbox(autoescape=False)  # plain text; the report escapes what it shows
    sandbox.filters["shown"] = shown
    sandbox.filters["join"] = _join
    sandbox.filters["round"] = _round
    return sandbox


def _rule(plain: Mapping[str, Any]) -> Rule:
    values: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in plain.items()}
    return Rule(**values)


def _problems(document: Document, identifier: re.Pattern[str]) -> Iterator[Problem]:
    plain, whole = document.data, shown_path(document.path)
    for key in (key for key in plain if key not in _KEYS):
        yield Problem(document.marks[(key,)].place, dotted((key,)), f"no such key; a rule has {', '.join(_KEYS)}")
    for key in (key for key in _NEEDED if not plain.get(key)):
        yield Problem(whole, key, "is missing")
    for key in (key for key in plain if key in _KEYS):
        for message in _wrong(document.path, key, plain[key], plain.get("about"), identifier):
            yield Problem(document.marks[(key,)].place, key, message)


def _wrong(path: Path, key: str, value: Any, about: Any, identifier: re.Pattern[str]) -> Iterator[str]:
    """Yield what is wrong with one value."""
    choices = {"certainty": CERTAINTIES, "about": ABOUT, "rank": RANKS, "explains": (True, False)}
    if key in choices:
        if not (isinstance(value, type(choices[key][0])) and value in choices[key]):
            yield f"is {value!r}; expected one of {', '.join(map(str, choices[key]))}"
    elif key in _LISTS:
        yield from _wrong_list(key, value, about)
    elif not isinstance(value, str):
        yield f"is {value!r}; expected text, so quote it"
    elif key == "id":
        if not identifier.fullmatch(value) or not path.name.startswith(f"{value}_"):
            form = "PFnnn" if identifier is _IDENTIFIER else "a prefix of your own and three digits, such as OUR001"
            yield f"is {value!r}; expected {form}, and a file name that starts with it and an underscore"
    elif key in (*_CONDITIONS, *_TEXTS):
        yield from _wrong_source(value, about, condition=key in _CONDITIONS)


def _wrong_list(key: str, value: Any, about: Any) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        yield f"is {value!r}; expected a list of texts"
    elif key == "evidence":
        yield from _unknown(value, about)


def _wrong_source(source: str, about: Any, *, condition: bool) -> Iterator[str]:
    """Yield a syntax error, what rules may not contain, or each name that is no evidence."""
    if len(source) > _LONGEST:
        yield f"has {len(source)} characters; at most {_LONGEST}"
        return
    try:
        tree = _sandbox().parse("{{ (" + source + ") }}" if condition else source)
        refused = list(_refused(tree))
        if refused:  # not looked at any further: Jinja computes constants as soon as it compiles
            yield from refused
            return
        _ = expression(source) if condition else template(source)
        names = sorted(meta.find_undeclared_variables(tree))
    except TemplateSyntaxError as error:
        yield f"cannot be read: {error.message}"
    except RecursionError:
        yield "is nested too deep"
    except SecurityError as error:
        yield str(error)
    else:
        yield from _unknown(names, about)


def _unknown(names: Sequence[str], about: Any) -> Iterator[str]:
    """Yield a sentence for each name that is no evidence, or none of the whole run in a rule about it."""
    for name in names:
        if name not in EVIDENCE:
            near = difflib.get_close_matches(name, EVIDENCE, n=1)
            yield f"no evidence is named {name!r}" + (f"; did you mean {near[0]}?" if near else "")
        elif about == "run" and name in OF_SUSPECT:
            yield f"{name!r} is known of a suspect only, and this rule is about the run"


def _refused(tree: nodes.Template) -> Iterator[str]:
    """Yield what a template has that a rule needs not, and that could take any time or room."""
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, _NODES):
            yield f"has {type(node).__name__.lower()}, which rules have not: names, comparisons, sums, if, filters"
        elif isinstance(node, nodes.Filter) and node.name not in _FILTERS:
            yield f"has the filter {node.name}; filters of rules are {', '.join(sorted(_FILTERS))}"
        elif isinstance(node, nodes.Call) and not (isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS):
            yield f"calls something; rules call {', '.join(sorted(_METHODS))} of a text alone"

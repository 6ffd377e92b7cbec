"""Rule files: one YAML file a rule, read and checked all at once before any of them is used."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Template, TemplateSyntaxError, meta
from jinja2.environment import TemplateExpression
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


def load(folders: Sequence[Path]) -> list[Rule]:
    """Read every rule file of the folders, sorted by id.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    rules: list[Rule] = []
    problems: list[Problem] = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.yaml"))):
        found = list(_problems(path, plain := _plain(path)))
        problems += found
        if not found:
            rules.append(_rule(plain))
    problems += _repeated(rules)
    if problems:
        raise ConfigError(
            f"{len(problems)} problems in rule files", problems=problems, next_step="correct the files; no rule was used"
        )
    return sorted(rules, key=lambda rule: rule.id)


@functools.lru_cache(maxsize=512)
def expression(condition: str) -> TemplateExpression:
    """Return a compiled condition."""
    return _sandbox().compile_expression(condition)


@functools.lru_cache(maxsize=1024)
def template(source: str) -> Template:
    """Return a compiled text."""
    return _sandbox().from_string(source)


@functools.lru_cache(maxsize=1)
def _sandbox() -> ImmutableSandboxedEnvironment:
    sandbox = ImmutableSandboxedEnvironment(autoescape=False)  # plain text; the report escapes what it shows
    sandbox.filters["shown"] = shown
    return sandbox


def _plain(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        return str(error)


def _rule(plain: Mapping[str, Any]) -> Rule:
    values: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in plain.items()}
    return Rule(**values)


def _problems(path: Path, plain: Any) -> Iterator[Problem]:
    if not isinstance(plain, dict):
        yield Problem(str(path), path.stem, f"is not a mapping of keys: {plain}")
        return
    for key in (key for key in plain if key not in _KEYS):
        yield Problem(str(path), str(key), f"no such key; a rule has {', '.join(_KEYS)}")
    for key in (key for key in _NEEDED if not plain.get(key)):
        yield Problem(str(path), key, "is missing")
    for key in (key for key in plain if key in _KEYS):
        yield from (Problem(str(path), key, message) for message in _wrong(path, key, plain[key], plain.get("about")))


def _wrong(path: Path, key: str, value: Any, about: Any) -> Iterator[str]:
    """Yield what is wrong with one value."""
    choices = {"certainty": CERTAINTIES, "about": ABOUT, "rank": RANKS, "explains": (True, False)}
    if key in choices:
        if value not in choices[key]:
            yield f"is {value!r}; expected one of {', '.join(map(str, choices[key]))}"
    elif key in _LISTS:
        yield from _wrong_list(key, value, about)
    elif not isinstance(value, str):
        yield f"is {value!r}; expected text, so quote it"
    elif key == "id":
        if not _IDENTIFIER.fullmatch(value) or not path.name.startswith(f"{value}_"):
            yield f"is {value!r}; expected PFnnn, and a file name that starts with it and an underscore"
    elif key in (*_CONDITIONS, *_TEXTS):
        yield from _wrong_source(value, about, condition=key in _CONDITIONS)


def _wrong_list(key: str, value: Any, about: Any) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        yield f"is {value!r}; expected a list of texts"
    elif key == "evidence":
        yield from _unknown(value, about)


def _wrong_source(source: str, about: Any, *, condition: bool) -> Iterator[str]:
    """Yield a syntax error, or each name that is no evidence."""
    try:
        _ = expression(source) if condition else template(source)
        tree = _sandbox().parse("{{ (" + source + ") }}" if condition else source)
    except TemplateSyntaxError as error:
        yield f"cannot be read: {error.message}"
        return
    yield from _unknown(sorted(meta.find_undeclared_variables(tree)), about)


def _unknown(names: Sequence[str], about: Any) -> Iterator[str]:
    """Yield a sentence for each name that is no evidence, or none of the whole run in a rule about it."""
    for name in names:
        if name not in EVIDENCE:
            near = difflib.get_close_matches(name, EVIDENCE, n=1)
            yield f"no evidence is named {name!r}" + (f"; did you mean {near[0]}?" if near else "")
        elif about == "run" and name in OF_SUSPECT:
            yield f"{name!r} is known of a suspect only, and this rule is about the run"


def _repeated(rules: Sequence[Rule]) -> list[Problem]:
    identifiers = [rule.id for rule in rules]
    return [
        Problem("", one, "stands in more than one file")
        for one in sorted({one for one in identifiers if identifiers.count(one) > 1})
    ]

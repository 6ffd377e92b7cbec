"""Rule files: one YAML file a rule, all of them read and checked before any is used.

To add a rule, add a file ``conf/rule/PFnnn_what_it_is.yaml`` with the keys of :class:`AdviceRule`. If it needs evidence that is
not measured yet, add a module to ``evidence/of_run/``, or to ``evidence/of_suspect/`` if it is about one call.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from precflow import resources
from precflow.agent.contract import PHASES
from precflow.config.documents import Document, display_path, dotted, read
from precflow.diagnosis.advice.rule_templates import check_template, find_failure
from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT
from precflow.diagnosis.findings import CERTAINTIES
from precflow.errors import ConfigError, Problem

ABOUT = ("run", "suspect", "unexplained", "unexplained_run")
_ABOUT_RUN = frozenset(("run", "unexplained_run"))
RANKS = ("before", "normal", "after")
"""Among findings of equal certainty: those before all suspects, those in the order of the suspects, those after them."""
_CONDITIONS = ("when", "likely_when", "certain_when")
_TEXTS = ("title", "where", "why", "fix", "try_it", "confirm", "look")
_LISTS = ("evidence", "sources")
_IDENTIFIER = re.compile(r"PF\d{3}")
# Not PF001 and the like: a rule that precflow adds later could have the same id.
_OF_TEAM = re.compile(r"(?!PF\d)[A-Z]{2,8}\d{3}")


@dataclass(frozen=True)
class Objection:
    """What speaks against a rule although its ``when`` holds; the rule is then ruled out, and the finding says why.

    Attributes:
        when: Condition under which it does.
        because: The reason, as a template.
    """

    when: str
    because: str


_OBJECTION = ("when", "because")


@dataclass(frozen=True)
class AdviceRule:
    """One rule. Texts are Jinja templates and conditions are Jinja expressions, both over the names of ``EVIDENCE``.

    Attributes:
        id: ``PFnnn``: 1 environment, 2 operators, 3 attention, 4 weights and data, 5 numerics, 6 the whole
            run, 7 curves, 8 training.
        title: One line: what is wrong.
        when: Condition that makes it apply.
        why: Why this happens.
        fix: What to do.
        certainty: How sure it is that this explains the difference: ``certain``, ``likely`` or ``possible``; ``unknown`` for
            the rule that says that nothing does.
        likely_when: Condition that raises it to ``likely``; ``""`` for none.
        certain_when: Condition that raises it to ``certain``; ``""`` for none. A rule about a suspect is certain only if the
            error begins at the suspect: its inputs are equal bit for bit, or float64 at its own inputs shows the error.
        against: What speaks against it.
        about: ``run`` (once), ``suspect`` (for each suspect), ``unexplained`` (for suspects that no other rule explains, unless
            a certain finding explains one of the same kind) or ``unexplained_run`` (once, unless certain findings explain
            suspects of every kind).
        phase: Of a rule about the run, the part of the step that it speaks of, such as ``optimizer``. Where the run starts in
            an earlier part, what it says is a consequence or a second fault, and stands back. ``""`` for no part.
        where: Module and operator, or a setting.
        try_it: Overrides that show whether it helps.
        confirm: A what-if that would confirm it; without one, ``try_it`` does.
        look: Words behind ``precflow`` that show more where neither can be tried, with ``REFERENCE`` and ``TARGET`` for the
            dumps and ``WHERE`` for the place; ``""`` compares the record at that place in full.
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
    likely_when: str = ""
    certain_when: str = ""
    against: tuple[Objection, ...] = ()
    about: str = "suspect"
    phase: str = ""
    where: str = "{{ name }}"
    try_it: str = ""
    confirm: str = ""
    look: str = ""
    evidence: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    rank: str = "normal"
    explains: bool = True

    @property
    def is_about_run(self) -> bool:
        """Tell whether it speaks once, of the run, and not of each suspect."""
        return self.about in _ABOUT_RUN


_KEYS = {field.name: field for field in fields(AdviceRule)}
_NEEDED = tuple(name for name, field in _KEYS.items() if field.default is MISSING)


def load_rules(folders: Sequence[Path], team: Sequence[Path] = ()) -> list[AdviceRule]:
    """Read every rule file of the folders, sorted by id.

    Templates in the rules that ship are checked by a test, and not at every run: that takes a second.

    Args:
        folders: Of precflow's own rules.
        team: Of a team's rules, whose ids have a prefix of their own.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    files: dict[str, list[Path]] = {}
    rules: list[AdviceRule] = []
    problems: list[Problem] = []
    for path in (path for folder in (*folders, *team) for path in sorted(folder.glob("*.yaml"))):
        wrong, rule = check_file(path, of_team=path.parent in team, templates=path.parent != _shipped())
        problems += wrong
        if rule is not None:
            rules.append(rule)
            files.setdefault(rule.id, []).append(path)
    problems += [
        Problem(", ".join(map(_find_id, paths)), identifier, "stands in more than one file")
        for identifier, paths in files.items()
        if paths[1:]
    ]
    if problems:
        raise ConfigError(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in rule files",
            problems=problems,
            next_step="correct the files; no rule was used",
        )
    return sorted(rules, key=lambda rule: rule.id)


def find_same_id(path: Path, folders: Sequence[Path]) -> list[Problem]:
    """Return a problem if another rule file of the folders has the id of this one, with the lines of both."""
    identifier = path.stem.partition("_")[0]  # a rule whose file name does not begin with its id is refused
    others = [other for folder in folders for other in sorted(folder.glob(f"{identifier}_*.yaml")) if other != path]
    places = [
        f"{display_path(other)}:1" if ("id",) not in read(other, "rule", "").marks else _find_id(other) for other in others
    ]
    return [Problem(_find_id(path), identifier, f"stands in {', '.join(places)} too")] if others else []


def _find_id(path: Path) -> str:
    """Return ``file:line`` of a rule's id."""
    return read(path, "rule", path.stem).marks[("id",)].place


def check_file(path: Path, *, of_team: bool, templates: bool = True) -> tuple[tuple[Problem, ...], AdviceRule | None]:
    """Return what is wrong with one file, each problem with its line, and its rule if nothing is.

    Args:
        path: The file.
        of_team: It is a team's, so that its id has a prefix of their own.
        templates: Look into its texts and conditions too.
    """
    return _check_document(read(path, "rule", path.stem), _OF_TEAM if of_team else _IDENTIFIER, templates=templates)


@functools.lru_cache(maxsize=1)
def _shipped() -> Path:
    return resources.directory("conf") / "rule"


@functools.lru_cache(maxsize=512)  # a process reads the same rules at each of its runs
def _check_document(
    document: Document, identifier: re.Pattern[str], *, templates: bool
) -> tuple[tuple[Problem, ...], AdviceRule | None]:
    name = document.path.stem
    problems = tuple(Problem(problem.place, problem.key or name, problem.message) for problem in document.problems)
    problems = problems or tuple(_find_problems(document, identifier) if templates else _find_wrong_keys(document))
    if problems:
        return problems, None
    values: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in document.data.items()}
    values["against"] = tuple(Objection(**one) for one in values.get("against", ()))
    return (), AdviceRule(**values)


def _find_wrong_keys(document: Document) -> Iterator[Problem]:
    plain, whole = document.data, display_path(document.path)
    for key in (key for key in plain if key not in _KEYS):
        yield Problem(document.marks[(key,)].place, dotted((key,)), f"no such key; a rule has {', '.join(_KEYS)}")
    for key in (key for key in _NEEDED if not plain.get(key)):
        yield Problem(whole, key, "is missing")


def _find_problems(document: Document, identifier: re.Pattern[str]) -> Iterator[Problem]:
    yield from _find_wrong_keys(document)
    plain = document.data
    for key in (key for key in plain if key in _KEYS):
        if key == "against":
            yield from _check_objections(document, plain[key], plain.get("about"))
            continue
        messages = list(_check_value(document.path, key, plain[key], plain.get("about"), identifier))
        if not messages and key in _TEXTS and identifier is _OF_TEAM:  # a test fills in those that ship, which takes a while
            messages += find_failure(plain[key])
        for message in messages:
            yield Problem(document.marks[(key,)].place, key, message)


def _check_objections(document: Document, given: Any, about: Any) -> Iterator[Problem]:
    """Yield what is wrong with the list of what speaks against a rule, each with the line of its own entry."""
    if not isinstance(given, list) or not all(isinstance(one, dict) and set(one) == set(_OBJECTION) for one in given):
        expected = "expected a list of entries, each with `when` (a condition) and `because` (a text)"
        yield Problem(document.marks[("against",)].place, "against", f"is {given!r}; {expected}")
        return
    for number, one in enumerate(given):
        for key in _OBJECTION:
            path = ("against", str(number), key)
            mark = document.marks.get(path) or document.marks[("against",)]
            if not isinstance(one[key], str):
                yield Problem(mark.place, dotted(path), f"is {one[key]!r}; expected text, so quote it")
                continue
            problems, names = check_template(one[key], condition=key == "when")
            yield from (Problem(mark.place, dotted(path), message) for message in (*problems, *_check_names(names, about)))


def _check_value(path: Path, key: str, value: Any, about: Any, identifier: re.Pattern[str]) -> Iterator[str]:
    """Yield what is wrong with one value."""
    choices = {"certainty": CERTAINTIES, "about": ABOUT, "phase": PHASES, "rank": RANKS, "explains": (True, False)}
    if key in choices:
        if not (isinstance(value, type(choices[key][0])) and value in choices[key]):  # 1 is in (True, False), but no bool
            yield f"is {value!r}; expected one of {', '.join(map(str, choices[key]))}"
    elif key in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            yield f"is {value!r}; expected a list of texts"
        elif key == "evidence":
            yield from _check_names(value, about)
    elif not isinstance(value, str):
        yield f"is {value!r}; expected text, so quote it"
    elif key == "id":
        if not identifier.fullmatch(value) or not path.name.startswith(f"{value}_"):
            form = "PFnnn" if identifier is _IDENTIFIER else "a prefix of your own and three digits, such as OUR001"
            yield f"is {value!r}; expected {form}, and a file name that starts with it and an underscore"
    elif key in (*_CONDITIONS, *_TEXTS):
        problems, names = check_template(value, condition=key in _CONDITIONS)
        yield from problems
        yield from _check_names(names, about)


def _check_names(names: Sequence[str], about: Any) -> Iterator[str]:
    """Yield a sentence for each name that is no evidence, or is evidence about a suspect in a rule about the run."""
    for name in names:
        if name not in EVIDENCE:
            near = difflib.get_close_matches(name, EVIDENCE, n=1)
            yield f"no evidence is named {name!r}" + (f"; did you mean {near[0]}?" if near else "")
        elif about in _ABOUT_RUN and name in OF_SUSPECT:
            yield f"{name!r} is known only of a suspect, and this rule is about the run"

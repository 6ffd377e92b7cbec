"""Rule files: one YAML file a rule, all of them read and checked before any is used.

To add a rule, add a file ``conf/rule/PFnnn_what_it_is.yaml`` with the keys of :class:`AdviceRule`. If it needs evidence that is
not measured yet, add a module to ``evidence/of_run/``, or to ``evidence/of_suspect/`` if it is about one call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow import resources
from precflow.agent.contract import PHASES
from precflow.config.data_files import Checked, check_document, load_files
from precflow.config.documents import Document, PathProblems, display_path, read
from precflow.config.suggestions import did_you_mean
from precflow.diagnosis.advice.rule_templates import check_template, find_failure
from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT
from precflow.diagnosis.findings import CERTAINTIES
from precflow.errors import Problem

ABOUT = ("run", "suspect", "unexplained", "unexplained_run")
_ABOUT_RUN = frozenset(("run", "unexplained_run"))
RANKS = ("before", "normal", "after")
"""Among findings of equal certainty: those before all suspects, those in the order of the suspects, those after them."""
_CONDITIONS = ("when", "likely_when", "certain_when")
_TEXTS = ("title", "where", "why", "fix", "try_it", "confirm", "look")
_TRANSLATED = ("zh",)
"""Languages in which a rule may have its texts beside the English ones."""
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


@dataclass(frozen=True)
class RuleTexts:
    """The texts of a rule in another language, templates over the same names.

    Attributes:
        title: What is wrong.
        why: Why this happens.
        fix: What to do.
        where: The place, where it is said in words; ``""`` leaves it as it is.
        against: Reasons of the objections, in their order.
    """

    title: str
    why: str
    fix: str
    where: str = ""
    against: tuple[str, ...] = ()


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
        zh: Its texts in Chinese; a rule without them is shown in English.
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
    zh: RuleTexts | None = None

    @property
    def is_about_run(self) -> bool:
        """Tell whether it speaks once, of the run, and not of each suspect."""
        return self.about in _ABOUT_RUN


_WORDS = {
    "AdviceRule.certainty": CERTAINTIES,
    "AdviceRule.about": ABOUT,
    "AdviceRule.phase": PHASES,
    "AdviceRule.rank": RANKS,
}


def load_rules(folders: Sequence[Path], team: Sequence[Path] = ()) -> list[AdviceRule]:
    """Read every rule file of the folders, sorted by id.

    Templates in the rules that ship are checked by a test, and not at every run: that takes a second.

    Args:
        folders: Of precflow's own rules.
        team: Of a team's rules, whose ids have a prefix of their own.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    loaded = load_files(
        (*folders, *team),
        lambda path: check_file(path, of_team=path.parent in team, templates=path.parent != _shipped()),
        "rule files",
        "no rule was used",
        _find_same_ids,
    )
    return sorted((rule for _, rule in loaded), key=lambda rule: rule.id)


def _find_same_ids(loaded: Sequence[tuple[Path, AdviceRule]]) -> Iterator[Problem]:
    files: dict[str, list[Path]] = {}
    for path, rule in loaded:
        files.setdefault(rule.id, []).append(path)
    for identifier, paths in files.items():
        if paths[1:]:
            yield Problem(", ".join(map(_find_id, paths)), identifier, "stands in more than one file")


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


def check_file(path: Path, *, of_team: bool, templates: bool = True) -> Checked[AdviceRule]:
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
def _check_document(document: Document, identifier: re.Pattern[str], *, templates: bool) -> Checked[AdviceRule]:
    def find_problems(document: Document, _: AdviceRule | None) -> PathProblems:
        """Yield what is wrong, but for templates where those are not to be looked into."""
        return _find_problems(document, identifier) if templates else iter(())

    return check_document(document, AdviceRule, find_problems, _WORDS)


def _find_problems(document: Document, identifier: re.Pattern[str]) -> PathProblems:
    """Yield what is wrong with values that have the right form: the id, texts, conditions, and names of evidence."""
    plain, about = document.data, document.data.get("about")
    if isinstance(given := plain.get("id"), str) and not (
        identifier.fullmatch(given) and document.path.name.startswith(f"{given}_")
    ):
        form = "PFnnn" if identifier is _IDENTIFIER else "a prefix of your own and three digits, such as OUR001"
        yield ("id",), f"is {given!r}; expected {form}, and a file name that starts with it and an underscore"
    for key, value in plain.items():
        if key in (*_CONDITIONS, *_TEXTS) and isinstance(value, str):
            wrong = list(_check_text(value, about, condition=key in _CONDITIONS))
            if not wrong and key in _TEXTS and identifier is _OF_TEAM:  # a test fills in those that ship, which takes a while
                wrong += find_failure(value)
            yield from (((key,), message) for message in wrong)
        elif key == "evidence" and isinstance(value, list):
            yield from (((key,), message) for message in _check_names(value, about))
        elif key == "against" and isinstance(value, list):
            for number, entry in enumerate(value):
                for name in ("when", "because"):
                    text = entry.get(name) if isinstance(entry, Mapping) else None
                    messages = _check_text(text, about, condition=name == "when") if isinstance(text, str) else ()
                    yield from (((key, str(number), name), message) for message in messages)
        elif key in _TRANSLATED and isinstance(value, Mapping):
            yield from _find_problems_of_texts(key, value, document.data, of_team=identifier is _OF_TEAM)


def _find_problems_of_texts(language: str, texts: Mapping[str, Any], rule: Mapping[str, Any], *, of_team: bool) -> PathProblems:
    """Yield what is wrong with the texts of a rule in another language."""
    reasons = texts.get("against")
    reasons = reasons if isinstance(reasons, list) else []
    expected = len(rule.get("against") or ())
    if len(reasons) not in {0, expected}:
        yield (language, "against"), f"has {len(reasons)} reasons; expected one for each of the {expected} under `against`"
    named = [((language, key), text) for key, text in texts.items() if key != "against"]
    for path, text in [*named, *(((language, "against", str(number)), text) for number, text in enumerate(reasons))]:
        if isinstance(text, str):
            wrong = list(_check_text(text, rule.get("about"), condition=False))
            wrong += find_failure(text) if of_team and not wrong else ()
            yield from ((path, message) for message in wrong)


def _check_text(text: str, about: Any, *, condition: bool) -> Iterator[str]:
    """Yield what is wrong with a template, or with a condition."""
    problems, names = check_template(text, condition=condition)
    yield from problems
    yield from _check_names(names, about)


def _check_names(names: Sequence[str], about: Any) -> Iterator[str]:
    """Yield a sentence for each name that is no evidence, or is evidence about a suspect in a rule about the run."""
    for name in names:
        if name not in EVIDENCE:
            yield f"no evidence is named {name!r}.{did_you_mean(str(name), EVIDENCE)}"
        elif about in _ABOUT_RUN and name in OF_SUSPECT:
            yield f"{name!r} is known only of a suspect, and this rule is about the run"

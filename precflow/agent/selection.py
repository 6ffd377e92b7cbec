"""What is recorded, and how much of it: the one answer to "is this call a record, in which detail, and which part of it".

Pure: names and numbers only. It is asked for every call, so answers are kept. Both programs use it: the agent while it
records, the judge to estimate what a dump will take.
"""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from precflow.agent.contract import NONE, OUTSIDE, module_text
from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    import torch

_SHOWN = 5  # names that a message offers
_KEPT = 1 << 16  # answers that are remembered; a run with more kinds of calls asks again
_LITERAL = re.compile(r"[^*?\[]*\Z")


class Rule(NamedTuple):
    """One entry of ``capture.rules``; what is empty matches everything.

    Attributes:
        match: Patterns of module names as screens show them; any of them.
        class_name: Patterns of class names (key ``class``); any of them.
        operator: Patterns of canonical operator names; a module's own record has the empty name.
        level: ``module``, ``api``, ``operator``.
        phase: ``forward``...
        step: Step numbers.
        rank: Ranks.
        detail: ``digest``, ``statistics``, ``sketch``, ``tensors``, ``none``; ``""`` is what ``capture.detail`` says.
        slices: The part that is kept, as an index: ``[0, :, -1]``; ``""`` is everything.
        sample: Share of the elements that is kept of large tensors, 1.0 for all.
    """

    match: Tuple[str, ...] = ()
    class_name: Tuple[str, ...] = ()
    operator: Tuple[str, ...] = ()
    level: Tuple[str, ...] = ()
    phase: Tuple[str, ...] = ()
    step: Tuple[int, ...] = ()
    rank: Tuple[int, ...] = ()
    detail: str = ""
    slices: str = ""
    sample: float = 1.0

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Rule:
        """Return the rule that a request or a recipe says as plain data; ``because`` is for people."""
        values: Dict[str, Any] = {}
        for key, value in plain.items():
            if key != "because":
                values["class_name" if key == "class" else key] = tuple(value) if isinstance(value, (list, tuple)) else value
        return cls(**values)

    def plain(self) -> Dict[str, Any]:
        """Return it as a request says it, without what matches everything."""
        values = self._asdict()
        said = {key: value for key, value in values.items() if value != self._field_defaults[key]}
        return {"class" if key == "class_name" else key: value for key, value in said.items()}


class Choice(NamedTuple):
    """The answer for one kind of call: its detail, and the rule whose part of each tensor is kept (``None``: the whole)."""

    detail: str
    part: Optional[Rule]


NOT_RECORDED = Choice(NONE, None)
_Matcher = Callable[[str], Any]


class Scope:
    """Answers for every call of a run. The first rule that matches decides; what none matches has the general detail.

    Args:
        patterns: Patterns of module names, ``capture.scope``: nothing outside of them is recorded, and without any nothing.
        detail: ``capture.detail``.
        rules: ``capture.rules``.
        level: Levels that are recorded; none given is every one.
        phase: Phases that are recorded; none given is every one.
        step: Steps that are recorded; none given is every one.
        rank: Ranks that are recorded; none given is every one.
    """

    def __init__(  # noqa: PLR0913  the keys of the section that it stands for, by name
        self,
        patterns: Sequence[str] = ("*",),
        *,
        detail: str = "tensors",
        rules: Sequence[Rule] = (),
        level: Sequence[str] = (),
        phase: Sequence[str] = (),
        step: Sequence[int] = (),
        rank: Sequence[int] = (),
    ) -> None:
        self._inside: _Matcher = _matcher(patterns) if patterns else (lambda _: False)
        self._general = Choice(detail, None)
        self._rules = [_Compiled(rule, detail) for rule in rules]
        self._only: Tuple[Tuple[Any, ...], ...] = (tuple(level), tuple(phase), tuple(step), tuple(rank))
        self._by_step = any(rule.step for rule in rules) or bool(step)
        self._choices: Dict[Tuple[Any, ...], Choice] = {}
        self._details: Set[str] = set()
        self._open: Dict[Tuple[Any, ...], bool] = {}

    def detail_of(self, level: str, module: str, class_name: str, operator: str, phase: str, step: int, rank: int) -> str:  # noqa: PLR0913, PLR0917  who a call is
        """Return the detail of a call's records, ``none`` where it is not recorded.

        Args:
            level: ``module``, ``api``, ``operator``.
            module: Qualified name of the module that runs, or ``OUTSIDE``.
            class_name: Class of that module.
            operator: Canonical operator name; ``""`` for the module itself.
            phase: ``forward``...
            step: Number of the step.
            rank: Number of the process.
        """
        return self.choice(level, module, class_name, operator, phase, step, rank).detail

    def choice(self, level: str, module: str, class_name: str, operator: str, phase: str, step: int, rank: int) -> Choice:  # noqa: PLR0913, PLR0917  the same
        """Return detail and part of a call's records; arguments as of :meth:`detail_of`."""
        key = (level, module, class_name, operator, phase, step if self._by_step else -1, rank)
        found = self._choices.get(key)
        if found is None:
            if len(self._choices) > _KEPT:
                self._choices.clear()
            found = self._choices[key] = self._decide(key, step)
            self._details.add(found.detail)
        return found

    def opens(self, module: str, class_name: str, step: int, rank: int) -> bool:
        """Tell whether anything of a module, its own record or an operator directly inside, may be recorded at all.

        Where nothing can be, capture does not look at what runs there.
        """
        key = (module, class_name, step if self._by_step else -1, rank)
        found = self._open.get(key)
        if found is None:
            if len(self._open) > _KEPT:
                self._open.clear()
            found = self._open[key] = self._may_open(module, class_name, step, rank)
        return found

    @property
    def details(self) -> Set[str]:
        """Details of the calls so far that are recorded."""
        return self._details - {NONE}

    @property
    def unmatched(self) -> List[int]:
        """Numbers of the rules that decided about no call so far: misspelt, or behind one that matches the same."""
        return [number for number, rule in enumerate(self._rules) if not rule.used]

    def _decide(self, key: Tuple[Any, ...], step: int) -> Choice:
        level, module, class_name, operator, phase, _, rank = key
        wanted = all(not only or one in only for only, one in zip(self._only, (level, phase, step, rank)))
        shown = module_text(module)
        if not wanted or not self._inside(shown):
            return NOT_RECORDED
        for rule in self._rules:
            if rule.takes(level, phase, step, rank) and rule.names(shown, class_name) and rule.operator(operator):
                rule.used = True
                return rule.choice
        return self._general

    def _may_open(self, module: str, class_name: str, step: int, rank: int) -> bool:
        shown = module_text(module)
        _, _, steps, ranks = self._only
        if not self._inside(shown) or (steps and step not in steps) or (ranks and rank not in ranks):
            return False
        for rule in self._rules:
            if not rule.names(shown, class_name) or not rule.takes(None, None, step, rank):
                continue
            if rule.choice.detail != NONE:
                return True
            if rule.whole:  # nothing of this module gets past a rule that takes all of it
                return False
        return self._general.detail != NONE


class _Compiled:
    """A rule with its patterns ready to be asked.

    Attributes:
        choice: What it answers.
        whole: It takes every level, phase and operator of the modules that it matches.
        used: It has decided about a call.
    """

    def __init__(self, rule: Rule, general: str) -> None:
        detail = rule.detail or general
        in_part = detail != "digest" and bool(rule.slices or rule.sample < 1.0)  # a content id speaks of the whole tensor
        self.choice = NOT_RECORDED if detail == NONE else Choice(detail, rule if in_part else None)
        self.operator = _matcher(rule.operator)
        self.whole = not (rule.operator or rule.level or rule.phase)
        self.used = False
        self._rule = rule
        self._module = _matcher(rule.match)
        self._class = _matcher(rule.class_name)

    def names(self, shown: str, class_name: str) -> bool:
        """Tell whether it is about this module."""
        return bool(self._module(shown)) and bool(self._class(class_name))

    def takes(self, level: Optional[str], phase: Optional[str], step: int, rank: int) -> bool:
        """Tell whether it is about this level, phase, step and rank; ``None`` stands for any."""
        rule = self._rule
        pairs: Tuple[Tuple[Sequence[Any], Any], ...] = (
            (rule.level, level),
            (rule.phase, phase),
            (rule.step, step),
            (rule.rank, rank),
        )
        return all(not only or one is None or one in only for only, one in pairs)


def _matcher(patterns: Sequence[str]) -> _Matcher:
    """Return a function that tells whether any of the patterns matches a text; none given is any text."""
    if not patterns or "*" in patterns:
        return lambda _: True
    literal = frozenset(pattern for pattern in patterns if _LITERAL.match(pattern))
    globs = "|".join("(?:%s)" % translate(pattern) for pattern in patterns if pattern not in literal)
    if not globs:
        return literal.__contains__
    compiled = re.compile(globs).match
    return lambda text: text in literal or compiled(text) is not None


def literal_pattern(text: str) -> str:
    """Return the pattern that matches exactly this text.

    >>> literal_pattern("layers[0]")
    'layers[[]0]'
    """
    return re.sub(r"([*?[])", r"[\1]", text)


def check_scope(patterns: Sequence[str], model: torch.nn.Module, rules: Sequence[Rule] = ()) -> None:
    """Make sure that every pattern names a module: what a misspelt one was to record would be missed in silence.

    Args:
        patterns: Patterns of module names, as in ``capture.scope``; ``(model)`` is the model itself.
        model: The model that will run.
        rules: Their ``match`` and ``class`` are looked at in the same way.

    Raises:
        AgentError: ``bad_request``: a pattern matches no module; offers names that are near, or the outermost ones.
    """
    names = [module_text(name) for name, _ in model.named_modules()]
    classes = sorted({type(module).__name__ for module in model.modules()})
    asked = [("capture.scope", patterns, "module", names)]
    for number, rule in enumerate(rules):
        asked.append(("capture.rules[%d].match" % number, rule.match, "module", names))
        asked.append(("capture.rules[%d].class" % number, rule.class_name, "class", classes))
    for key, given, kind, known in asked:
        _check(key, given, known, kind, "%s (%d modules)" % (type(model).__name__, len(names)))


def _check(key: str, patterns: Sequence[str], names: Sequence[str], kind: str, model: str) -> None:
    idle = [pattern for pattern in patterns if pattern != OUTSIDE and not any(fnmatchcase(name, pattern) for name in names)]
    if not idle:
        return
    near = [name for pattern in idle for name in difflib.get_close_matches(pattern.rstrip(".*"), names, n=_SHOWN)]
    outermost = [name for name in names if "." not in name]
    shown = ", ".join((near or outermost)[:_SHOWN])
    plural = {"module": "modules", "class": "classes"}[kind]
    message = "%s=%s matches no %s of %s" % (key, idle, kind, model)
    raise AgentError("bad_request", message, "%s are named like this: %s" % (plural, shown))

"""Which calls are recorded, in which detail, and which part of each tensor is kept.

Everything here works on names and numbers alone. It is asked for every call, so answers are remembered. Both programs use it:
the agent while it records, the judge to estimate the size of a dump.
"""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from precflow.agent.contract import NONE, OUTSIDE, join_names, module_text
from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    import torch

_SHOWN = 5  # names that a message offers
_MOST_ANSWERS = 1 << 16  # that are remembered; beyond that all are forgotten and worked out again
_LITERAL = re.compile(r"[^*?\[]*\Z")


class DetailRule(NamedTuple):
    """One entry of ``capture.rules``: which calls it is about, and what is kept of them. An empty field matches everything.

    Attributes:
        match: Patterns of module names as the report shows them; one of them must match.
        class_name: Patterns of class names (key ``class``); one of them must match.
        operator: Patterns of canonical operator names; a module's own record has the empty name.
        level: Some of ``module``, ``api``, ``operator``.
        phase: Some of ``forward``, ``backward``, ``gradient``, ``optimizer``.
        step: Step numbers.
        rank: Ranks.
        detail: ``digest``, ``statistics``, ``sketch``, ``tensors``, ``none``; ``""`` means that of ``capture.detail``.
        slices: The part of each tensor that is kept, as an index: ``[0, :, -1]``; ``""`` is the whole tensor.
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
    def from_plain(cls, plain: Mapping[str, Any]) -> DetailRule:
        """Return a rule from the plain data of a request or a recipe; its key ``because`` is for people and left out."""
        values: Dict[str, Any] = {}
        for key, value in plain.items():
            if key != "because":
                values["class_name" if key == "class" else key] = tuple(value) if isinstance(value, (list, tuple)) else value
        return cls(**values)

    def to_plain(self) -> Dict[str, Any]:
        """Return the rule as plain data of a request, without fields that have their default."""
        changed = {key: value for key, value in self._asdict().items() if value != self._field_defaults[key]}
        return {"class" if key == "class_name" else key: value for key, value in changed.items()}


class Choice(NamedTuple):
    """What is kept of one call: the detail, and the rule that says which part of each tensor (``None``: the whole)."""

    detail: str
    part: Optional[DetailRule]


NOT_RECORDED = Choice(NONE, None)
_Matcher = Callable[[str], Any]


class Selection:
    """Decides about every call of a run. The first rule that matches counts; without one, the general detail does.

    Args:
        patterns: ``capture.scope``: patterns of module names. Only these modules are recorded; without a pattern, none is.
        detail: ``capture.detail``, the general detail.
        rules: ``capture.rules``.
        level: Levels that are recorded; empty means all.
        phase: Phases that are recorded; empty means all.
        step: Steps that are recorded; empty means all.
        rank: Ranks that are recorded; empty means all.
    """

    def __init__(  # noqa: PLR0913  the keys of the section that it stands for, by name
        self,
        patterns: Sequence[str] = ("*",),
        *,
        detail: str = "tensors",
        rules: Sequence[DetailRule] = (),
        level: Sequence[str] = (),
        phase: Sequence[str] = (),
        step: Sequence[int] = (),
        rank: Sequence[int] = (),
    ) -> None:
        self._is_in_scope: _Matcher = _compile_patterns(patterns) if patterns else (lambda _: False)
        self._general = Choice(detail, None)
        self._rules = [_CompiledRule(rule, detail) for rule in rules]
        self._only: Tuple[Tuple[Any, ...], ...] = (tuple(level), tuple(phase), tuple(step), tuple(rank))
        # Unless a rule or the section is about steps, the answer for a call is the same in every step and remembered once.
        self._by_step = any(rule.step for rule in rules) or bool(step)
        self._choices: Dict[Tuple[Any, ...], Choice] = {}
        self._details: Set[str] = set()
        self._recordable: Dict[Tuple[Any, ...], bool] = {}

    def detail_of(self, level: str, module: str, class_name: str, operator: str, phase: str, step: int, rank: int) -> str:  # noqa: PLR0913, PLR0917  the fields that tell one call from another
        """Return the detail of a call's records, ``none`` if it is not recorded.

        Args:
            level: ``module``, ``api``, ``operator``.
            module: Qualified name of the module that runs, or ``OUTSIDE``.
            class_name: Class of that module.
            operator: Canonical operator name; ``""`` for the module itself.
            phase: ``forward``, ``backward``, ``gradient`` or ``optimizer``.
            step: Number of the step.
            rank: Number of the process.
        """
        return self.choose(level, module, class_name, operator, phase, step, rank).detail

    def choose(self, level: str, module: str, class_name: str, operator: str, phase: str, step: int, rank: int) -> Choice:  # noqa: PLR0913, PLR0917  the same
        """Return the detail of a call's records and the part of each tensor; arguments as of :meth:`detail_of`."""
        key = (level, module, class_name, operator, phase, step if self._by_step else -1, rank)
        choice = self._choices.get(key)
        if choice is None:
            if len(self._choices) > _MOST_ANSWERS:
                self._choices.clear()
            choice = self._choices[key] = self._decide_call(key, step)
            self._details.add(choice.detail)
        return choice

    def may_record(self, module: str, class_name: str, step: int, rank: int) -> bool:
        """Tell whether anything of a module may be recorded: its own record, or an operator directly inside.

        If not, capture lets its operators run without looking at them.
        """
        key = (module, class_name, step if self._by_step else -1, rank)
        answer = self._recordable.get(key)
        if answer is None:
            if len(self._recordable) > _MOST_ANSWERS:
                self._recordable.clear()
            answer = self._recordable[key] = self._decide_module(module, class_name, step, rank)
        return answer

    @property
    def details(self) -> Set[str]:
        """Details of the calls recorded so far."""
        return self._details - {NONE}

    @property
    def unmatched(self) -> List[int]:
        """Numbers of the rules that have decided about no call so far: misspelt, or behind one that matches more."""
        return [number for number, rule in enumerate(self._rules) if not rule.used]

    def _decide_call(self, key: Tuple[Any, ...], step: int) -> Choice:
        level, module, class_name, operator, phase, _, rank = key
        wanted = all(not only or value in only for only, value in zip(self._only, (level, phase, step, rank)))
        shown = module_text(module)
        if not wanted or not self._is_in_scope(shown):
            return NOT_RECORDED
        for rule in self._rules:
            if (
                rule.matches_context(level, phase, step, rank)
                and rule.matches_module(shown, class_name)
                and rule.matches_operator(operator)
            ):
                rule.used = True
                return rule.choice
        return self._general

    def _decide_module(self, module: str, class_name: str, step: int, rank: int) -> bool:
        shown = module_text(module)
        _, _, steps, ranks = self._only
        if not self._is_in_scope(shown) or (steps and step not in steps) or (ranks and rank not in ranks):
            return False
        for rule in self._rules:
            if not rule.matches_module(shown, class_name) or not rule.matches_context(None, None, step, rank):
                continue
            if rule.choice.detail != NONE:
                return True
            if rule.is_general:  # no call of this module reaches the rules behind this one
                return False
        return self._general.detail != NONE


class _CompiledRule:
    """A rule with its patterns compiled.

    Attributes:
        choice: What is kept of calls that it matches.
        matches_operator: Tells whether it is about an operator.
        is_general: It matches every level, phase and operator of its modules.
        used: It has decided about a call.
    """

    def __init__(self, rule: DetailRule, general: str) -> None:
        detail = rule.detail or general
        in_part = detail != "digest" and bool(rule.slices or rule.sample < 1.0)  # a digest is always of the whole tensor
        self.choice = NOT_RECORDED if detail == NONE else Choice(detail, rule if in_part else None)
        self.matches_operator = _compile_patterns(rule.operator)
        self.is_general = not (rule.operator or rule.level or rule.phase)
        self.used = False
        self._rule = rule
        self._matches_name = _compile_patterns(rule.match)
        self._matches_class = _compile_patterns(rule.class_name)

    def matches_module(self, shown: str, class_name: str) -> bool:
        """Tell whether it is about this module."""
        return bool(self._matches_name(shown)) and bool(self._matches_class(class_name))

    def matches_context(self, level: Optional[str], phase: Optional[str], step: int, rank: int) -> bool:
        """Tell whether it is about this level, phase, step and rank; ``None`` stands for any."""
        rule = self._rule
        pairs: Tuple[Tuple[Sequence[Any], Any], ...] = (
            (rule.level, level),
            (rule.phase, phase),
            (rule.step, step),
            (rule.rank, rank),
        )
        return all(not only or value is None or value in only for only, value in pairs)


def _compile_patterns(patterns: Sequence[str]) -> _Matcher:
    """Return a function that tells whether one of the patterns matches a text; without a pattern any text matches."""
    if not patterns or "*" in patterns:
        return lambda _: True
    # Rules of a second pass name thousands of modules literally: a set finds them without trying each in turn.
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


def check_scope(patterns: Sequence[str], model: torch.nn.Module, rules: Sequence[DetailRule] = ()) -> None:
    """Make sure that every pattern matches a module. Otherwise a misspelt one would silently record nothing.

    Args:
        patterns: Patterns of module names, as in ``capture.scope``; ``(model)`` is the model itself.
        model: The model that will run.
        rules: Rules whose ``match`` and ``class`` are checked in the same way.

    Raises:
        AgentError: ``bad_request``: a pattern matches no module; suggests similar names, or the outermost ones.
    """
    check_scope_of([("", model)], patterns, rules)


def check_scope_of(
    models: Sequence[Tuple[str, torch.nn.Module]], patterns: Sequence[str], rules: Sequence[DetailRule] = ()
) -> None:
    """Make sure that every pattern matches a module of one of several models; see :func:`check_scope`.

    Args:
        models: Models, each with the name that stands before the names of its modules.
        patterns: Patterns of module names.
        rules: Rules.

    Raises:
        AgentError: ``bad_request``: a pattern matches no module.
    """
    named = [(join_names(prefix, name), module) for prefix, model in models for name, module in model.named_modules()]
    names = [module_text(name) for name, _ in named]
    classes = sorted({type(module).__name__ for _, module in named})
    title = ", ".join(type(model).__name__ for _, model in models)
    asked = [("capture.scope", patterns, "module", names)]
    for number, rule in enumerate(rules):
        asked.append(("capture.rules[%d].match" % number, rule.match, "module", names))
        asked.append(("capture.rules[%d].class" % number, rule.class_name, "class", classes))
    for key, given, kind, known in asked:
        _check_patterns(key, given, known, kind, "%s (%d modules)" % (title, len(names)))


def _check_patterns(key: str, patterns: Sequence[str], names: Sequence[str], kind: str, model: str) -> None:
    idle = [pattern for pattern in patterns if pattern != OUTSIDE and not any(fnmatchcase(name, pattern) for name in names)]
    if not idle:
        return
    near = [name for pattern in idle for name in difflib.get_close_matches(pattern.rstrip(".*"), names, n=_SHOWN)]
    outermost = [name for name in names if "." not in name]
    shown = ", ".join((near or outermost)[:_SHOWN])
    plural = {"module": "modules", "class": "classes"}[kind]
    message = "%s=%s matches no %s of %s" % (key, idle, kind, model)
    raise AgentError("bad_request", message, "%s are named like this: %s" % (plural, shown))

"""Rules: what is known about causes, as YAML files, and the engine that turns evidence into findings.

A rule says ``when`` it applies in a sandboxed Jinja expression over named evidence, and explains itself in templates over
the same names. Evidence that could not be had leaves its name undefined: then the expression is not met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import UndefinedError

from precflow.diagnosis.evidence.names import EVIDENCE, shown
from precflow.diagnosis.findings import CERTAINTIES, Finding
from precflow.diagnosis.rule_files import RANKS, Rule, expression, load, template
from precflow.errors import ConfigError, Problem

__all__ = ["Rule", "advise", "load"]


@dataclass(frozen=True)
class _Match:
    """A rule that applies, with the names that it applies to."""

    rule: Rule
    certainty: str
    order: int  # position of the suspect; -1 for the whole run
    names: Mapping[str, Any]


def advise(evidence: Mapping[str, Any], rules: Sequence[Rule]) -> list[Finding]:
    """Return findings, best first: by certainty, then the rule's rank, then order of the graph.

    Args:
        evidence: Named evidence as ``collect`` returns it: names of the run, and under ``suspects`` one mapping for each
            suspect, whose names are added to those of the run.
        rules: As :func:`load` returns them.
    """
    run = {name: value for name, value in evidence.items() if name != "suspects"}
    suspects = [{**run, **suspect} for suspect in evidence.get("suspects", ())]
    matches = [match for rule in rules if rule.about == "run" for match in _matches(rule, [(-1, run)])]
    matches += [match for rule in rules if rule.about == "suspect" for match in _matches(rule, enumerate(suspects))]
    explained = {match.order for match in matches if match.rule.explains}
    open_ = [(number, suspect) for number, suspect in enumerate(suspects) if number not in explained]
    matches += [match for rule in rules if rule.about == "unexplained" for match in _matches(rule, open_)]
    best = sorted(matches, key=lambda match: (*_standing(match), match.order, match.rule.id))
    return [_finding(same) for same in _by_rule(best)]


def _matches(rule: Rule, places: Iterable[tuple[int, Mapping[str, Any]]]) -> list[_Match]:
    found = [(number, names) for number, names in places if _holds(rule, rule.when, names)]
    return [_Match(rule, _certainty(rule, names), number, names) for number, names in found]


def _certainty(rule: Rule, names: Mapping[str, Any]) -> str:
    return "certain" if rule.certain_when and _holds(rule, rule.certain_when, names) else rule.certainty


def _holds(rule: Rule, condition: str, names: Mapping[str, Any]) -> bool:
    """Evaluate a condition; evidence that could not be had makes it false.

    Raises:
        ConfigError: The condition is wrong for another reason, such as a text that is compared with a number.
    """
    try:
        return bool(expression(condition)(**names))
    except UndefinedError:
        return False
    except Exception as error:
        problem = Problem("", rule.id, f"{condition}: {error}")
        raise ConfigError(
            "a rule cannot be evaluated", problems=[problem], next_step=f"correct the file of {rule.id}"
        ) from error


def _standing(match: _Match) -> tuple[int, int]:
    return CERTAINTIES.index(match.certainty), RANKS.index(match.rule.rank)


def _by_rule(matches: Iterable[_Match]) -> list[list[_Match]]:
    grouped: dict[str, list[_Match]] = {}
    for match in matches:
        grouped.setdefault(match.rule.id, []).append(match)
    return list(grouped.values())


def _finding(same: Sequence[_Match]) -> Finding:
    """Turn the matches of one rule into one finding: the first in full, the others by name."""
    first = same[0]
    rule, names = first.rule, first.names
    others = [_text(match.rule.where, match.names) for match in same[1:]]
    also = (("also at", ", ".join(others)),) if others else ()
    return Finding(
        rule=rule.id,
        title=_text(rule.title, names),
        certainty=first.certainty,
        where=_text(rule.where, names),
        site=str(names.get("site", "")) if rule.about != "run" else "",
        evidence=(*_shown(rule.evidence, names), *also),
        why=_text(rule.why, names),
        fix=_text(rule.fix, names),
        try_it=_text(rule.try_it, names),
        sources=rule.sources,
    )


def _shown(names: Iterable[str], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = [(name, values[name]) for name in names if name in values]
    return [(EVIDENCE[name].label, shown(value)) for name, value in known if not _is_empty(value)]


def _is_empty(value: Any) -> bool:
    return isinstance(value, (str, list, tuple)) and not value


def _text(source: str, names: Mapping[str, Any]) -> str:
    """Fill a text in.

    Raises:
        ConfigError: It cannot be filled in, or would be longer than any finding.
    """
    try:
        return " ".join(template(source).render(**names).split())
    except Exception as error:
        problem = Problem("", "", f"{source[:100]}: {error}")
        raise ConfigError("a text of a rule cannot be filled in", problems=[problem], next_step="correct its file") from error

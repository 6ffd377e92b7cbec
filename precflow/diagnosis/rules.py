"""The engine that turns evidence into findings by rules.

A rule says ``when`` it applies in a Jinja expression over named evidence, and explains itself in templates over the same names.
Evidence that could not be measured leaves its name undefined, and an expression that needs it does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import UndefinedError

from precflow.diagnosis.evidence.names import EVIDENCE, format_evidence
from precflow.diagnosis.findings import CERTAINTIES, Finding
from precflow.diagnosis.rule_files import RANKS, AdviceRule
from precflow.diagnosis.rule_templates import compile_condition, compile_text
from precflow.errors import ConfigError, Problem


@dataclass(frozen=True)
class _Match:
    """A rule that applies, with the evidence that it applies to."""

    rule: AdviceRule
    certainty: str
    order: int  # position of the suspect; -1 for the whole run
    evidence: Mapping[str, Any]


def advise(evidence: Mapping[str, Any], rules: Sequence[AdviceRule]) -> list[Finding]:
    """Return findings, best first: by certainty, then the rule's rank, then order of the graph.

    Args:
        evidence: Named evidence as ``collect`` returns it: names of the run, and under ``suspects`` one mapping for each
            suspect, whose names are added to those of the run.
        rules: As :func:`precflow.diagnosis.rule_files.load_rules` returns them.
    """
    run = {name: value for name, value in evidence.items() if name != "suspects"}
    suspects = [{**run, **suspect} for suspect in evidence.get("suspects", ())]
    matches = [match for rule in rules if rule.about == "run" for match in _match(rule, [(-1, run)])]
    matches += [match for rule in rules if rule.about == "suspect" for match in _match(rule, enumerate(suspects))]
    # Rules about the unexplained come last: they speak only of suspects for which no other rule has an explanation.
    explained = {match.order for match in matches if match.rule.explains}
    unexplained = [(number, suspect) for number, suspect in enumerate(suspects) if number not in explained]
    matches += [match for rule in rules if rule.about == "unexplained" for match in _match(rule, unexplained)]
    by_rule: dict[str, list[_Match]] = {}
    best_first = sorted(
        matches,
        key=lambda match: (CERTAINTIES.index(match.certainty), RANKS.index(match.rule.rank), match.order, match.rule.id),
    )
    for match in best_first:
        by_rule.setdefault(match.rule.id, []).append(match)
    return [_write_finding(same) for same in by_rule.values()]


def _match(rule: AdviceRule, subjects: Iterable[tuple[int, Mapping[str, Any]]]) -> list[_Match]:
    """Return a match for each subject (suspect or run) that the rule applies to."""
    matches = []
    for order, evidence in subjects:
        if _holds(rule, rule.when, evidence):
            is_certain = bool(rule.certain_when) and _holds(rule, rule.certain_when, evidence)
            matches.append(_Match(rule, "certain" if is_certain else rule.certainty, order, evidence))
    return matches


def _holds(rule: AdviceRule, condition: str, evidence: Mapping[str, Any]) -> bool:
    """Evaluate a condition; evidence that could not be measured makes it false.

    Raises:
        ConfigError: The condition is wrong for another reason, such as a text that is compared with a number.
    """
    try:
        return bool(compile_condition(condition)(**evidence))
    except UndefinedError:  # evidence that was not measured, as that of tensors which were not kept
        return False
    except Exception as error:
        problem = Problem("", rule.id, f"{condition}: {error}")
        raise ConfigError(
            "a rule cannot be evaluated", problems=[problem], next_step=f"correct the file of {rule.id}"
        ) from error


def _write_finding(same: Sequence[_Match]) -> Finding:
    """Turn the matches of one rule into one finding: the first in full, the others by name."""
    first = same[0]
    rule, evidence = first.rule, first.evidence
    others = [_fill_in(match.rule.where, match.evidence) for match in same[1:]]
    also = (("also at", ", ".join(others)),) if others else ()
    known = [(name, evidence[name]) for name in rule.evidence if name in evidence]
    # Empty texts and lists are left out; 0 and "no" are facts.
    measured = [(EVIDENCE[name].label, format_evidence(value)) for name, value in known if value not in ("", [], ())]
    return Finding(
        rule=rule.id,
        title=_fill_in(rule.title, evidence),
        certainty=first.certainty,
        where=_fill_in(rule.where, evidence),
        site=str(evidence.get("site", "")) if rule.about != "run" else "",
        evidence=(*measured, *also),
        why=_fill_in(rule.why, evidence),
        fix=_fill_in(rule.fix, evidence),
        try_it=_fill_in(rule.try_it, evidence),
        sources=rule.sources,
    )


def _fill_in(source: str, evidence: Mapping[str, Any]) -> str:
    """Fill in a text of a rule.

    Raises:
        ConfigError: It cannot be filled in, or would be longer than any finding.
    """
    try:
        return " ".join(compile_text(source).render(**evidence).split())
    except Exception as error:
        problem = Problem("", "", f"{source[:100]}: {error}")
        raise ConfigError("a text of a rule cannot be filled in", problems=[problem], next_step="correct its file") from error

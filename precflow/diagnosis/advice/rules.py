"""The engine that turns evidence into findings by rules.

A rule says ``when`` it applies in a Jinja expression over named evidence, and explains itself in templates over the same names.
Evidence that could not be measured leaves its name undefined, and an expression that needs it does not hold.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow import language
from precflow.diagnosis.advice.rule_files import RANKS, AdviceRule, Objection
from precflow.diagnosis.advice.rule_templates import compile_text, holds
from precflow.diagnosis.evidence.names import EVIDENCE
from precflow.diagnosis.evidence.pieces import format_evidence
from precflow.diagnosis.findings import ALSO_AT, CERTAINTIES, Finding
from precflow.errors import ConfigError, Problem

# How well a suspect is placed. An explanation of a suspect whose error may have arrived with its inputs explains little: the
# true suspect may be another one.
_IN_FULL = "compare REFERENCE TARGET --record WHERE"
_ROUNDINGS = 2.0  # an own error of fewer is that of a right operator, where the stage `introduced` did not decide
_MOSTLY = 0.5  # share of infinities at places where the reference is beyond the type's range, or of an explained error
_SOME = 0.005  # share of an error that is worth a number
_BEGINS, _AGREES, _DOUBTFUL = range(3)
_HIGHEST = {_BEGINS: "certain", _AGREES: "likely", _DOUBTFUL: "possible"}  # certainty that a finding there can have


@dataclass(frozen=True)
class _Match:
    """A rule that applies, with the evidence that it applies to."""

    rule: AdviceRule
    certainty: str
    standing: int  # of the suspect; for the whole run as good as the best
    order: int  # position of the suspect; -1 for the whole run
    evidence: Mapping[str, Any]

    @property
    def is_behind_start(self) -> bool:
        """Tell whether it speaks of a part of the step that comes after the one in which the run starts."""
        phase = self.rule.phase if self.rule.is_about_run else self.evidence.get("phase")
        return phase in self.evidence.get("later_phases", ())

    @property
    def place(self) -> tuple[object, ...]:
        """Where it stands: sure ones first, those behind the start after others, then by how surely the error begins there."""
        # "unknown" is as good as "possible": what is known of the true suspect comes before guesses about another one.
        strength = min(CERTAINTIES.index(self.certainty), CERTAINTIES.index("possible"))
        # Run-wide rules with the rank "after" come behind those about suspects.
        last = self.order < 0 and self.rule.rank == "after"
        return (strength, last, self.is_behind_start, self.standing, RANKS.index(self.rule.rank), self.order, self.rule.id)


@dataclass(frozen=True)
class _Refuted:
    """A rule that does not hold at a suspect, and why, with both texts in other languages as in :class:`Finding`."""

    claim: str
    because: str
    translations: Mapping[str, Mapping[str, str]]


_RuledOut = dict[int, list[_Refuted]]  # by the position of the suspect


def advise(evidence: Mapping[str, Any], rules: Sequence[AdviceRule]) -> list[Finding]:
    """Return findings, best first: by certainty, how well the suspect is placed, the rule's rank, then order of the graph.

    Args:
        evidence: Named evidence as ``collect`` returns it: names of the run, and under ``suspects`` one mapping for each
            suspect, whose names are added to those of the run.
        rules: As :func:`precflow.diagnosis.advice.rule_files.load_rules` returns them.
    """
    run = {name: value for name, value in evidence.items() if name != "suspects"}
    suspects = [{**run, **suspect} for suspect in evidence.get("suspects", ())]
    some_begin = any(_begins(suspect) for suspect in suspects)
    ruled_out: _RuledOut = {}
    matches = []
    for rule in rules:
        if rule.about == "run":
            matches += _match(rule, [(-1, run)], ruled_out, some_begin=False)
        elif rule.about == "suspect":
            matches += _match(rule, enumerate(suspects), ruled_out, some_begin=some_begin)
    # Rules about the unexplained come last: they speak only of suspects for which no other rule has an explanation. A rule
    # whose certainty had to be lowered because the error may come from elsewhere explains nothing.
    explained = {
        match.order
        for match in matches
        if match.rule.explains and CERTAINTIES.index(match.certainty) <= CERTAINTIES.index(match.rule.certainty)
    }
    # Twelve layer norms with one fault are not eleven riddles beside the one that is solved.
    solved = {suspects[one.order].get("kind") for one in matches if _is_solved(one)}
    unexplained = [
        (number, suspect)
        for number, suspect in enumerate(suspects)
        if number not in explained and (suspect.get("kind") is None or suspect["kind"] not in solved)
    ]
    every_kind = run.get("suspect_kinds")
    is_left = every_kind is None or not solved >= {*every_kind}
    for rule in rules:
        if rule.about == "unexplained":
            matches += _match(rule, unexplained, ruled_out, some_begin=some_begin)
        elif rule.about == "unexplained_run" and is_left:
            matches += _match(rule, [(-1, run)], ruled_out, some_begin=False)
    by_rule: dict[str, list[_Match]] = {}
    for match in sorted(matches, key=lambda match: match.place):
        by_rule.setdefault(match.rule.id, []).append(match)
    return [_write_finding(same, ruled_out) for same in by_rule.values()]


def _is_solved(match: _Match) -> bool:
    """Tell whether a rule explains a suspect for certain."""
    return match.order >= 0 and match.rule.explains and match.certainty == CERTAINTIES[0]


def _begins(evidence: Mapping[str, Any]) -> bool:
    """Tell whether the error surely begins at a suspect: by equal inputs, by float64 at its own, or by the call itself.

    So does infinity where the reference is beyond the range of the target's type: float64, rounded to that type, is infinite
    too and clears the call, and no error of its inputs would have to arrive.
    """
    return bool(
        evidence.get("inputs_equal")
        or evidence.get("introduced_fault")
        or (evidence.get("status") == "nonfinite" and evidence.get("overflow_share", 0.0) >= _MOSTLY)
        or evidence.get("wired_differently")
        or evidence.get("given_differently")
        or evidence.get("given_tensor")
        or evidence.get("other_weight")
    )


def _find_standing(evidence: Mapping[str, Any], *, some_begin: bool) -> int:
    if _begins(evidence):
        return _BEGINS
    # `introduced_fault` is absent where nothing was evaluated, and False where float64 at its own inputs found nothing.
    is_clean = evidence.get("introduced_fault", evidence.get("own_error_units", math.inf) > _ROUNDINGS) is False
    follows = evidence.get("accumulated") or evidence.get("behind_start")
    return _DOUBTFUL if some_begin or is_clean or follows else _AGREES


def _match(
    rule: AdviceRule, subjects: Iterable[tuple[int, Mapping[str, Any]]], ruled_out: _RuledOut, *, some_begin: bool
) -> list[_Match]:
    """Return a match for each subject (suspect or run) that the rule applies to; note where something speaks against it."""
    matches, owner = [], f"rule {rule.id}"
    raised = (("certain", rule.certain_when), ("likely", rule.likely_when))
    for order, evidence in subjects:
        if not holds(rule.when, evidence, owner=owner):
            continue
        objection = next((one for one in enumerate(rule.against) if holds(one[1].when, evidence, owner=owner)), None)
        if objection is not None:
            ruled_out.setdefault(order, []).append(_rule_out(rule, objection, evidence))
            continue
        standing = _BEGINS if rule.is_about_run else _find_standing(evidence, some_begin=some_begin)
        given = next(
            (name for name, condition in raised if condition and holds(condition, evidence, owner=owner)), rule.certainty
        )
        certainty = max(given, _HIGHEST[standing], key=CERTAINTIES.index)
        matches.append(_Match(rule, certainty, standing, order, evidence))
    return matches


def _rule_out(rule: AdviceRule, objection: tuple[int, Objection], evidence: Mapping[str, Any]) -> _Refuted:
    """Return a rule with what speaks against it, which is the objection of this number."""
    number, reason = objection
    claim, because = f"{rule.id} {_fill_in(rule, rule.title, evidence)}", _fill_in(rule, reason.because, evidence)
    if rule.zh is None:
        return _Refuted(claim, because, {})
    chinese = _in_chinese(evidence)
    said = {claim: f"{rule.id} {_fill_in(rule, rule.zh.title, chinese)}"}
    if rule.zh.against:
        said[because] = _fill_in(rule, rule.zh.against[number], chinese)
    return _Refuted(claim, because, {language.CHINESE: said})


def _list_tested(rule: AdviceRule, evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was tested at a suspect and explains less than half of its error, and how much; not what the rule claims."""
    if rule.is_about_run:
        return []
    claimed = {*rule.evidence, *re.findall(r"\w+_share", f"{rule.when} {rule.likely_when} {rule.certain_when}")}
    tested = {
        name.tests: evidence[key]
        for key, name in EVIDENCE.items()
        if name.tests and key not in claimed and evidence.get(key, _MOSTLY) < _MOSTLY
    }
    partly = [(words, f"explains {100 * share:.2g} % of the error") for words, share in tested.items() if share > _SOME]
    nothing = [words for words, share in tested.items() if share <= _SOME]
    explain = "explains none of the error" if len(nothing) == 1 else "explain none of the error"
    return partly + ([(", ".join(nothing), explain)] if nothing else [])


def _write_look(rule: AdviceRule, where: str, evidence: Mapping[str, Any]) -> str:
    """Return the words that show more of a finding, with the record of a suspect for its place."""
    if not rule.is_about_run:
        where = evidence.get("record", where)
    elif where == evidence.get("first_suspect"):
        where = evidence.get("first_record", where)
    return re.sub(r"\bWHERE\b", lambda _: shlex.quote(where), _fill_in(rule, rule.look or _IN_FULL, evidence))


def _write_finding(same: Sequence[_Match], ruled_out: _RuledOut) -> Finding:
    """Turn the matches of one rule into one finding: the first in full, the others by name, and by title if that is another."""
    first = same[0]
    rule, evidence = first.rule, first.evidence
    title, where, try_it = (_fill_in(rule, text, evidence) for text in (rule.title, rule.where, rule.try_it))
    others = [(_fill_in(rule, rule.where, match.evidence), _fill_in(rule, rule.title, match.evidence)) for match in same[1:]]
    apart = dict.fromkeys(one for one in others if one != (where, title))  # several suspects may lie in one place
    named = [other if claim in {title, other} else f"{other} ({claim})" for other, claim in apart]
    also = ((ALSO_AT, ", ".join(named)),) if named else ()
    known = [(name, evidence[name]) for name in rule.evidence if name in evidence]
    # Empty texts and lists are left out; 0 and "no" are facts.
    measured = [
        (EVIDENCE[name].label, format_evidence(value, EVIDENCE[name].unit))
        for name, value in known
        if value not in ("", [], ())
    ]
    return Finding(
        rule=rule.id,
        title=title,
        certainty=first.certainty,
        where=where,
        site=str(evidence.get("site", "")) if not rule.is_about_run else "",
        evidence=(*measured, *also),
        why=_fill_in(rule, rule.why, evidence),
        fix=_fill_in(rule, rule.fix, evidence),
        try_it=try_it,
        sources=rule.sources,
        claim=f"{where}: {title}" if where else title,
        against=(*((one.claim, one.because) for one in ruled_out.get(first.order, ())), *_list_tested(rule, evidence)),
        confirm=_fill_in(rule, rule.confirm, evidence) or try_it,
        look=_write_look(rule, where, evidence),
        translations=_translate(same, ruled_out),
    )


def _translate(same: Sequence[_Match], ruled_out: _RuledOut) -> dict[str, dict[str, str]]:
    """Return language -> English text of a finding -> that text, for the texts that its rules say in that language too."""
    first = same[0]
    rule, texts = first.rule, first.rule.zh
    said: dict[str, str] = {}
    for objection in ruled_out.get(first.order, ()):
        said |= objection.translations.get(language.CHINESE, {})
    if texts is not None:
        pairs = [(first, rule.why, texts.why), (first, rule.fix, texts.fix)]
        pairs += [(match, rule.title, texts.title) for match in same]
        pairs += [(match, rule.where, texts.where) for match in same if texts.where]
        for match, text, other in pairs:
            english, chinese = _fill_in(rule, text, match.evidence), _fill_in(rule, other, _in_chinese(match.evidence))
            if english and chinese != english:  # a title may be a sentence of the evidence alone, which a catalogue knows
                said[english] = chinese
    return {language.CHINESE: said} if said else {}


def _in_chinese(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return evidence with its sentences in Chinese, as far as the catalogue knows them; words and names stay as they are."""
    catalogue = language.load(language.CHINESE)
    assert catalogue is not None

    def translate(value: Any) -> Any:
        """Translate a text of several words, or those of a list."""
        if isinstance(value, (list, tuple)):
            return [translate(item) for item in value] if any(isinstance(item, str) for item in value) else value
        return catalogue.translate(value) if isinstance(value, str) and " " in value else value

    return {name: translate(value) for name, value in evidence.items()}


def _fill_in(rule: AdviceRule, source: str, evidence: Mapping[str, Any]) -> str:
    """Fill in a text of a rule.

    Raises:
        ConfigError: It cannot be filled in, or would be longer than any finding.
    """
    try:
        return " ".join(compile_text(source).render(**evidence).split())
    except Exception as error:
        problem = Problem(f"{rule.id}_*.yaml", rule.id, f"{source[:100]}: {error}")
        raise ConfigError(
            f"a text of rule {rule.id} cannot be filled in", problems=[problem], next_step=f"correct {rule.id}_*.yaml"
        ) from error

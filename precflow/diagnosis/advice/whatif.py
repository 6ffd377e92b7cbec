"""What-ifs, without the runs themselves: which of them to try on which suspects, what a run with one shows, and what follows.

A what-if is *confirmed* if what failed without it passes with it, in the same process, and nearly all of the error is gone. It
is *refuted* if nearly all of the error is still there. A confirmed one makes the findings that it confirms certain.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precflow.agent.contract import WHATIF_OF_RUN
from precflow.config.sections.whatifs import TOP
from precflow.diagnosis.advice.rule_templates import holds
from precflow.diagnosis.advice.whatif_files import WhatIf
from precflow.diagnosis.findings import (
    CERTAINTIES,
    CONFIRMED,
    FAILED,
    NOTHING,
    OUTCOMES,
    PARTLY,
    REFUTED,
    Finding,
    Outcome,
    Suspect,
)
from precflow.diagnosis.price import describe_ratio
from precflow.judgement.coverage import COMPARED
from precflow.judgement.verdicts import MISALIGNED_STATUSES
from precflow.task.outcome import TaskValue, describe_changed

NEARLY_ALL, NEXT_TO_NOTHING = 0.8, 0.2  # shares of the error that are gone: confirmed from the first, refuted up to the second
OUTCOMES_FILE = "outcomes.jsonl"
"""File in the folder of a what-if's stage."""
_MOST_AT_ONCE = 4  # what-ifs that `top` tries

Arguments = Mapping[str, tuple[str, str]]  # name -> (reference's text, target's text)


@dataclass(frozen=True)
class Trial:
    """A what-if and the suspects whose error it is to remove: those that it changes, unless it changes the whole run."""

    whatif: WhatIf
    suspects: tuple[Suspect, ...]


@dataclass(frozen=True)
class ArmRun:
    """One run of the target, with or without something changed.

    Attributes:
        problem: Why it did not run; ``""`` if it did.
        errors: Identity text -> relative_l2 of the output, where it was measured.
        statuses: Identity text -> status.
        seconds: Time of its steps without capture, by round; the n-th of all arms of a process were taken one after the other.
        task: The task metrics of this run.
    """

    problem: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    statuses: Mapping[str, str] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()
    task: tuple[TaskValue, ...] = ()

    def failing(self, records: Collection[str]) -> list[str]:
        """Return those of the records that fail."""
        return [record for record in records if self.statuses.get(record) in MISALIGNED_STATUSES]

    def compared(self, records: Collection[str]) -> list[str]:
        """Return those of the records that were compared in this run; one that has no partner now proves nothing."""
        return [record for record in records if self.statuses.get(record) in COMPARED]

    @property
    def passes(self) -> bool:
        """It ran, something was compared, and nothing that was recorded fails."""
        return not self.problem and bool(self.compared(self.statuses)) and not self.failing(self.statuses)

    def error(self, records: Collection[str]) -> float:
        """Return the error of some records together: the root of the sum of squares of those that were measured."""
        known = [self.errors[record] for record in records if record in self.errors]
        return math.sqrt(math.fsum(error * error for error in known if math.isfinite(error)))


# Which to try


def choose_trials(
    word: str, whatifs: Sequence[WhatIf], findings: Sequence[Finding], suspects: Sequence[Suspect], evidence: Mapping[str, Any]
) -> list[Trial]:
    """Return what a word of the key ``whatif`` asks to try, the cheapest first.

    Args:
        word: Name of a what-if (tried whatever the evidence says), id of a rule (the what-ifs that confirm its finding), or
            ``top`` (what the evidence suggests).
        whatifs: All that there are.
        findings: Of this run.
        suspects: Of this run, most suspect first.
        evidence: As ``collect`` returns it; it is about the first suspects only. A condition that holds for one of them counts
            for all suspects with the same operator.
    """
    named = [whatif for whatif in whatifs if whatif.name == word]
    if named:
        return _aim(named[0], suspects, evidence, always=True)
    if word != TOP:
        finding = next((finding for finding in findings if finding.rule == word), None)
        return [] if finding is None else _confirm(finding, whatifs, suspects, evidence)
    trials: dict[str, Trial] = {}
    for finding in findings[:2]:
        for trial in _confirm(finding, whatifs, suspects, evidence):
            trials.setdefault(trial.whatif.name, trial)
    for whatif in sorted(whatifs, key=lambda whatif: (whatif.cost, whatif.name)):
        for trial in _aim(whatif, suspects, evidence):
            trials.setdefault(whatif.name, trial)
    return list(trials.values())[:_MOST_AT_ONCE]


def find_confirming(finding: Finding, whatifs: Sequence[WhatIf]) -> list[WhatIf]:
    """Return the what-ifs that confirm a finding, the cheapest first: those that its rule names, else those that name it."""
    named = {word.partition("=")[2] or word for word in finding.confirm.split()}
    confirming = [whatif for whatif in whatifs if whatif.name in named]
    confirming = confirming or [whatif for whatif in whatifs if finding.rule in whatif.confirms]
    return sorted(confirming, key=lambda whatif: (whatif.cost, whatif.name))


def _confirm(
    finding: Finding, whatifs: Sequence[WhatIf], suspects: Sequence[Suspect], evidence: Mapping[str, Any]
) -> list[Trial]:
    """Return what confirms a finding, on the suspects that it is about: where it says, and others of the same operator."""
    operators = {suspect.operator for suspect in suspects if suspect.name == finding.where}
    about = [suspect for suspect in suspects if suspect.operator in operators] or list(suspects)
    confirming = find_confirming(finding, whatifs)
    worth = [trial for whatif in confirming for trial in _aim(whatif, about, evidence)]
    return worth or [trial for whatif in confirming[:1] for trial in _aim(whatif, about, evidence, always=True)]


def _aim(whatif: WhatIf, suspects: Sequence[Suspect], evidence: Mapping[str, Any], *, always: bool = False) -> list[Trial]:
    """Return the what-if with the suspects for which it is worth trying; nothing if it is for none (unless ``always``)."""
    run = {name: value for name, value in evidence.items() if name != "suspects"}
    known = {str(one["name"]): {**run, **one} for one in evidence.get("suspects", ())}

    def is_worth(facts: Mapping[str, Any]) -> bool:
        """Tell whether the what-if's own condition holds; one without a condition is always worth trying."""
        return not whatif.when or holds(whatif.when, facts, owner=f"whatif {whatif.name}")

    if whatif.is_of_run:
        worth = any(map(is_worth, [run, *known.values()]))
        return [Trial(whatif, tuple(suspects))] if suspects and (worth or always) else []
    operators = {suspect.operator for suspect in suspects if is_worth(known.get(suspect.name, run))}
    chosen = tuple(suspect for suspect in suspects if suspect.operator in operators)
    chosen = chosen or (tuple(suspects) if always else ())
    return [Trial(whatif, chosen)] if chosen else []


# One arm of a run


def describe_changes(whatif: WhatIf, records: Sequence[str], arguments: Mapping[str, Arguments]) -> list[dict[str, Any]]:
    """Return the changes of an arm as a request has them; none if there is nothing to change.

    Args:
        whatif: What is changed.
        records: Identity texts of the suspects.
        arguments: Identity text -> arguments that differ, which ``arguments: reference`` replaces.
    """
    changes: list[dict[str, Any]] = []
    for kind, value in whatif.change.items():
        change = {"kind": kind, "value": value, "records": [] if kind in WHATIF_OF_RUN else list(records)}
        if kind == "arguments" and value == "reference":
            texts = {record: {name: both[0] for name, both in arguments.get(record, {}).items()} for record in records}
            differing = {record: named for record, named in texts.items() if named}
            change |= {"value": differing, "records": list(differing)}
        elif kind == "arguments":
            change["value"] = {record: {name: repr(each) for name, each in value.items()} for record in records}
        if change["records"] or kind in WHATIF_OF_RUN:
            changes.append(change)
    return changes


def conclude(trial: Trial, without: ArmRun, run: ArmRun, ends: Collection[str]) -> Outcome:
    """Return what a run with a what-if has shown, beside the run without it.

    Args:
        trial: What was changed.
        without: The run in which nothing was.
        run: The run with it.
        ends: Identity texts of what the model returns.
    """
    whatif = trial.whatif
    records = [suspect.record for suspect in trial.suspects]
    names = () if whatif.is_of_run else tuple(suspect.name for suspect in trial.suspects)
    title = _fill_in(whatif.title, trial.suspects)
    outcome = Outcome(
        whatif.name, title, FAILED, names, confirms=whatif.confirms, task_before=without.task, task_after=run.task
    )
    if run.problem or without.problem:
        return replace(outcome, problem=run.problem or without.problem)
    failing = without.failing(records) or without.failing(ends)
    if run.compared(failing) != failing and without.failing(ends):
        records = failing = without.failing(ends)  # other operators run in place of the suspects: the model's output tells
    if run.compared(failing) != failing:
        return replace(outcome, problem="what failed without it has no record to compare in the run with it")
    before, after = without.error(records), run.error(records)
    removed = _share(before, after)
    end = _share(without.error(ends), run.error(ends))
    if not failing:
        word = NOTHING
    elif not run.failing(failing) and (removed >= NEARLY_ALL or before == 0):
        word = CONFIRMED
    else:
        word = REFUTED if removed <= NEXT_TO_NOTHING and run.failing(failing) else PARTLY
    return replace(outcome, outcome=word, before=before, after=after, removed=removed, removed_at_end=end)


def _fill_in(title: str, suspects: Sequence[Suspect]) -> str:
    """Name the suspects in a title: ``layer_norm`` or ``3 layer_norm`` in place of ``the suspects``."""
    operators = {suspect.operator or suspect.name for suspect in suspects}
    if len(operators) != 1:
        return title.replace("the suspects", f"{len(suspects)} suspects") if suspects else title
    operator = next(iter(operators))
    return title.replace("the suspects", operator if len(suspects) == 1 else f"{len(suspects)} {operator}")


def _share(before: float, after: float) -> float:
    """Return the share of an error that is gone; 0 if there was none to remove."""
    return 1.0 - after / before if before > 0 else 0.0


# What follows


def apply_outcomes(findings: Sequence[Finding], outcomes: Sequence[Outcome]) -> list[Finding]:
    """Return the findings with what the what-ifs have shown: confirmed ones are certain, refuted ones less so; best first."""
    changed = [_apply(finding, [outcome for outcome in outcomes if _speaks_about(outcome, finding)]) for finding in findings]
    return sorted(changed, key=lambda finding: CERTAINTIES.index(finding.certainty))


def _speaks_about(outcome: Outcome, finding: Finding) -> bool:
    known = {word.partition("=")[2] or word for word in finding.confirm.split()}
    if finding.rule not in outcome.confirms and outcome.name not in known:
        return False
    return not outcome.suspects or finding.where in outcome.suspects or not finding.site


def _apply(finding: Finding, outcomes: Sequence[Outcome]) -> Finding:
    best = min(outcomes, key=lambda one: (OUTCOMES.index(one.outcome), -one.removed), default=None)
    if best is None:
        return finding
    shown = replace(finding, evidence=((best.outcome, explain(best)), *finding.evidence))
    if best.outcome == CONFIRMED:
        return replace(shown, certainty="certain")
    if best.outcome == REFUTED:
        lower = {"certain": "likely", "likely": "possible"}
        return replace(shown, certainty=lower.get(finding.certainty, finding.certainty))
    return shown


def describe(outcome: Outcome) -> str:
    """Return one line on an outcome.

    >>> describe(Outcome("written_out", "layer_norm written out", "confirmed", removed=0.998))
    'confirmed: with layer_norm written out, 99.8 % of the error is gone'
    """
    return f"{outcome.outcome}: {explain(outcome)}"


def explain(outcome: Outcome) -> str:
    """Return what led to an outcome."""
    if outcome.problem:
        return f"with {outcome.title}: {outcome.problem}"
    if outcome.outcome == NOTHING:
        return "what it changes stays within its limits without it"
    # Rounded down: 99.99996 % is not all of it.
    finer = 10.0 ** (5 if outcome.removed > 0.999 else 3)
    percent = f"{max(math.floor(outcome.removed * finer), 0) / finer * 100:.{3 if finer > 1e4 else 1}f} %"
    gone = "all" if outcome.removed == 1 else percent
    enough = f"; {', '.join(outcome.needed)} alone is enough" if outcome.needed else ""
    price = f", in {describe_ratio(outcome.price, *(outcome.spread or [outcome.price] * 2))}" if outcome.price else ""
    task = describe_changed(outcome.task_before, outcome.task_after)
    return f"with {outcome.title}, {gone} of the error is gone{price}{task and f', {task}'}{enough}"

"""Suspects, the region where the sides part, outcomes of what-ifs, and findings: what the stages behind ``judge`` write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precflow.task.outcome import TaskValue

if TYPE_CHECKING:
    from precflow.dumps.records import Call

CERTAINTIES = ("certain", "likely", "possible", "unknown")
"""Best first; ``unknown`` is the finding that no rule explains a suspect."""
ALSO_AT = "also at"
"""Label of the fact that names the other places of a finding."""
CONFIRMED, PARTLY, REFUTED, NOTHING, FAILED = OUTCOMES = ("confirmed", "partly", "refuted", "nothing to mend", "did not run")
"""What a run with something changed has shown: a what-if, see :mod:`precflow.diagnosis.advice.whatif`."""
ROLES = ("introduces", "inherits", "agrees", "accepted", "unknown")


@dataclass(frozen=True)
class Suspect:
    """An operator or module under suspicion.

    Attributes:
        record: Identity text of its failing output.
        name: ``module / operator``.
        module: Module path.
        operator: Canonical operator name, ``""`` for a module.
        order: Order of the call on the reference.
        ratio: How far over its limit, at least 1 unless nonfinite.
        why: Why it is suspect, such as "its inputs agree, its output does not".
        site: ``file:line in function`` of the call.
        inputs_use: Largest share of its limit that one of its inputs uses, 0 to 1; above a half its error may be accumulated.
        changed: A tensor of the call that changed after another call had returned it, and where; ``""`` if there is none.
        outside: An input of whole numbers, such as labels, that differs though no call before it fails; ``""`` if none does.
        accepted: A call whose accepted difference its inputs carry; ``""`` if they carry none.
        weight: A weight that differs although no recorded call wrote it, as in an averaged model; ``""`` if none does.
        after: Last calls whose records agree, where the error starts somewhere between them and this one; else empty.
        between_reference: Calls of the reference in between that have no partner.
        between_target: Calls of the target in between that have no partner.
        arrives: Identity text of the input that differs although all before it agrees; ``""`` if there is none.
        class_name: Class of the module that makes the call.
        given: Identity text of an input that differs, that no recorded call made, and before which nothing fails; ``""`` if
            there is none. Otherwise ``arrives`` is the record that shows it, itself or behind movement.
    """

    record: str
    name: str
    module: str
    operator: str
    order: int
    ratio: float
    why: str
    site: str = ""
    inputs_use: float = 0.0
    changed: str = ""
    outside: str = ""
    accepted: str = ""
    weight: str = ""
    after: tuple[str, ...] = ()
    between_reference: tuple[str, ...] = ()
    between_target: tuple[str, ...] = ()
    arrives: str = ""
    class_name: str = ""
    given: str = ""

    @classmethod
    def of(cls, call: Call, record: str, ratio: float, why: str) -> Suspect:
        """Return a call as a suspect, because of one of its outputs."""
        return cls(
            record=record,
            name=call.name,
            module=call.module,
            operator=call.operator,
            order=call.order,
            ratio=ratio,
            why=why,
            site=call.site,
            class_name=call.class_name,
        )


@dataclass(frozen=True)
class Region:
    """Where two sides part.

    Attributes:
        start: The first suspect's name, or ``""`` if nothing differs.
        suspects: The calls that introduce an error, most suspect first.
        roles: Identity text of a judged record -> ``introduces``, ``inherits``, ``agrees``, ``accepted`` or ``unknown``.
        unrepeatable: Names (``module / operator``) whose output changed between two equal runs, ``side: name``, in order.
        notes: What a reader should know, such as "the inputs of the two sides differ already".
    """

    start: str = ""
    suspects: tuple[Suspect, ...] = ()
    roles: dict[str, str] | None = None
    unrepeatable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One piece of advice.

    Attributes:
        rule: Id such as ``PF214``.
        title: One line: what is wrong.
        certainty: One of ``CERTAINTIES``.
        where: ``module / operator`` or a setting.
        site: Source line of the call, or ``""``.
        evidence: Measured facts, ``(what, value)``.
        why: Why this happens.
        fix: What to do.
        try_it: Overrides that show whether it helps, or ``""``; in a report the whole command line with them.
        sources: Where the knowledge comes from.
        change: In a report, what ``try_it`` changes of the run's own command: ``target.dtype=float32``; else ``""``.
        claim: What is claimed, in one sentence that names the place.
        against: Other rules that would have applied, and what speaks against each: ``(rule and its title, reason)``.
        confirm: A what-if, or overrides, that would confirm the claim; ``""`` if none is known.
        look: Words behind ``precflow`` that show more of it, with ``REFERENCE`` and ``TARGET`` for the dumps; ``""`` in a
            report, where ``try_it`` has them if nothing else is to be tried.
        translations: Language -> English text of this finding -> that text, as far as its rule has it.
    """

    rule: str
    title: str
    certainty: str
    where: str = ""
    site: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    why: str = ""
    fix: str = ""
    try_it: str = ""
    sources: tuple[str, ...] = ()
    change: str = ""
    claim: str = ""
    against: tuple[tuple[str, str], ...] = ()
    confirm: str = ""
    look: str = ""
    translations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def collect_translations(findings: Iterable[Finding], language: str) -> dict[str, str]:
    """Return English text -> that text in another language, of all findings."""
    return {text: said for finding in findings for text, said in finding.translations.get(language, {}).items()}


@dataclass(frozen=True)
class Outcome:
    """What a run with a what-if has shown.

    Attributes:
        name: Name of the what-if.
        title: What was other than in the run, as a phrase behind "with".
        outcome: One of ``OUTCOMES``.
        suspects: Names of the calls that were changed; none where the whole run was.
        before: relative_l2 of the suspects' outputs without it.
        after: The same with it.
        removed: Share of their error that is gone with it; below 0 if the error has grown.
        removed_at_end: The same of what the model returns.
        needed: The fewest of the suspects that are enough, where several were changed and fewer are.
        price: Time of a run with it, in runs without: the median over timed rounds; 0 where it was not taken.
        spread: The smallest and the largest of these ratios; empty where it was not taken.
        confirms: Ids of the rules that it speaks about.
        problem: Why it did not run.
        task_before: Task metrics of the run without it.
        task_after: The same with it.
    """

    name: str
    title: str
    outcome: str
    suspects: tuple[str, ...] = ()
    before: float = 0.0
    after: float = 0.0
    removed: float = 0.0
    removed_at_end: float = 0.0
    needed: tuple[str, ...] = ()
    price: float = 0.0
    spread: tuple[float, ...] = ()
    confirms: tuple[str, ...] = ()
    problem: str = ""
    task_before: tuple[TaskValue, ...] = ()
    task_after: tuple[TaskValue, ...] = ()

"""``junit.xml`` for build servers: a case for the verdict, for each stage, and for each module of the first two levels.

A scan and a check of environments make cases of their own, and :func:`render_cases` writes those of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from precflow import numbers
from precflow.curves.outcome import CurveOutcome
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report import highlights, wording
from precflow.report.curves import describe_curve
from precflow.report.groups import find_module
from precflow.report.model import ReportModel, Row
from precflow.streams import printable_lines  # XML cannot hold control characters: they become visible escapes
from precflow.task.outcome import BEYOND, NOT_COMPUTED, WITHIN, TaskOutcome, summarize

MOST_CASES = 1000  # of a suite; for a model with 200 000 modules the file would otherwise have 30 MB
_IN_WORDS = {"failure": "failed", "error": "without evidence", "skipped": "skipped", "passed": "passed"}
_WORST_FIRST = tuple(_IN_WORDS)
_SHOWN = 10  # records listed in a failing case


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        suite: Of a run ``verdict``, ``stages``, ``curves``, ``task metrics`` or ``modules``.
        name: What a build server lists.
        outcome: ``passed``, ``failure``, ``error`` (no evidence) or ``skipped`` (nothing that could have failed).
        message: One line.
        detail: More lines.
        seconds: Time it took.
    """

    suite: str
    name: str
    outcome: str
    message: str = ""
    detail: str = ""
    seconds: float = 0.0


def render(model: ReportModel) -> str:
    """Return the run as JUnit XML."""
    return render_cases(model.recipe, list_cases(model))


def render_cases(name: str, cases: Sequence[Case]) -> str:
    """Return cases as JUnit XML, those of a suite together; ``name`` stands before each suite."""
    root = ET.Element("testsuites", _count_outcomes(name, cases))
    for suite in dict.fromkeys(case.suite for case in cases):
        inside = [case for case in cases if case.suite == suite]
        part = ET.SubElement(root, "testsuite", _count_outcomes(f"{name}.{suite}", inside))
        for case in inside:
            _append_case(part, name, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def list_cases(model: ReportModel) -> list[Case]:
    """Return every case. The verdict is one of them, because a run can be inconclusive although each module passes."""
    grouped: dict[str, list[Row]] = {}
    for row in model.rows:
        grouped.setdefault(find_module(row), []).append(row)
    modules = [_make_module_case(name, rows) for name, rows in grouped.items()]
    outcomes = {"kept": "passed", "run": "passed", "skipped": "skipped"}
    stages = [
        Case("stages", stage.name, outcomes.get(stage.state, "failure"), stage.note or stage.state, seconds=stage.seconds)
        for stage in model.stages
    ]
    verdict = model.verdict
    outcome = {"aligned": "passed", "misaligned": "failure", "inconclusive": "error"}[verdict.verdict]
    starts = f"starts at {model.region.start}" if verdict.verdict == "misaligned" and model.region.start else ""
    reasons = "; ".join(verdict.reasons)
    findings = [
        f"{finding.rule} {finding.title} ({finding.certainty}): {finding.fix}"
        + f" Next: {finding.try_it}" * bool(finding.try_it)
        for finding in model.findings
    ]
    changed = wording.describe_changed(verdict)
    beside = "; ".join(filter(None, (changed, *verdict.unseen)))
    message = f"{verdict.verdict}: {starts or reasons}" if outcome != "passed" else beside
    name = "emulated target" if model.emulated else "both sides"
    return [
        Case(
            "verdict",
            f"verdict ({name})",
            outcome,
            message,
            "\n".join([reasons, *([changed] if changed else []), *verdict.unseen, *findings]),
            model.seconds,
        ),
        *stages,
        *(_make_curve_case(one) for one in model.curves),
        *(_make_task_case(one) for one in model.task_metrics),
        *keep_worst(modules, "module"),
    ]


def keep_worst(cases: Sequence[Case], what: str) -> list[Case]:
    """Return the cases of one suite; if there are too many, only the worst, and one last case that counts the others.

    Args:
        cases: Of modules, for instance.
        what: What one is, in the singular.
    """
    if len(cases) <= MOST_CASES:
        return list(cases)
    ranked = sorted(range(len(cases)), key=lambda number: _WORST_FIRST.index(cases[number].outcome))
    kept, others = sorted(ranked[: MOST_CASES - 1]), [cases[number] for number in ranked[MOST_CASES - 1 :]]
    counted = Counter(case.outcome for case in others)
    listed = ", ".join(f"{numbers.count(many)} {_IN_WORDS[outcome]}" for outcome, many in counted.items())
    name = f"({numbers.plural(len(others), f'other {what}')}: {listed})"
    return [*(cases[number] for number in kept), Case(cases[0].suite, name, others[0].outcome, listed)]


def _make_module_case(name: str, rows: Sequence[Row]) -> Case:
    """Return the case of one module: failure if a record is wrong, else error if one is missing, else skipped or passed."""
    for outcome, statuses in (("failure", MISALIGNED_STATUSES), ("error", INCOMPLETE_STATUSES)):
        bad = [row for row in rows if row.judged.status in statuses]
        if bad:
            worst = highlights.find_worst_status([row.judged.status for row in bad])
            starts = " (the error starts here)" if any(row.role == "introduces" for row in bad) else ""
            return Case(
                "modules",
                name,
                outcome,
                f"{numbers.count(len(bad))} of {numbers.plural(len(rows), 'record')}, worst: {wording.words(worst)}{starts}",
                "\n".join(_list_reasons(bad)),
            )
    counted = Counter(row.judged.status for row in rows)
    named = (("accepted", "accepted difference", ""), ("near_tie", "near tie", ""))
    behind = ("not_comparable", "record after near ties", "records after near ties")
    notes = [numbers.plural(counted[status], *words) for status, *words in (*named, behind) if counted[status]]
    if not any(counted[status] for status in ("pass", "accepted", "near_tie")):
        return Case("modules", name, "skipped", "; ".join(["no record of this module could have failed", *notes]))
    return Case("modules", name, "passed", ", ".join(notes))


def _list_reasons(bad: Sequence[Row]) -> Iterable[str]:
    for row in sorted(bad, key=lambda row: row.role != "introduces")[:_SHOWN]:
        use = wording.describe_use(row.judged) if row.judged.status == "fail" else ""
        why = use or row.judged.reason or row.measure.reason or row.role
        yield f"{row.measure.name}: {wording.words(row.judged.status)}, {why}"
    if len(bad) > _SHOWN:
        yield f"and {numbers.count(len(bad) - _SHOWN)} more in the report"


def _make_curve_case(one: CurveOutcome) -> Case:
    outcome = {"aligned": "passed", "misaligned": "failure", "inconclusive": "error"}[one.verdict]
    return Case("curves", one.name, outcome, "; ".join((*one.failed, *one.missing)), describe_curve(one))


def _make_task_case(one: TaskOutcome) -> Case:
    outcomes = {WITHIN: "passed", BEYOND: "failure", NOT_COMPUTED: "error"}  # what is not told is neither
    return Case("task metrics", one.name, outcomes.get(one.state, "skipped"), summarize(one), one.effect_text)


def _count_outcomes(name: str, inside: Sequence[Case]) -> dict[str, str]:
    def count(outcome: str) -> str:
        """Return the number of cases with this outcome, as text of an attribute."""
        return str(sum(case.outcome == outcome for case in inside))

    return {
        "name": printable_lines(name),
        "tests": str(len(inside)),
        "failures": count("failure"),
        "errors": count("error"),
        "skipped": count("skipped"),
        "time": f"{sum(case.seconds for case in inside if case.suite == 'stages'):.3f}",
    }


def _append_case(suite: ET.Element, recipe: str, case: Case) -> None:
    classname, name = printable_lines(f"{recipe}.{case.suite}"), printable_lines(case.name)
    facts = {"classname": classname, "name": name, "time": f"{case.seconds:.3f}"}
    element = ET.SubElement(suite, "testcase", facts)
    if case.outcome == "passed":
        if case.suite != "stages" and case.message:
            ET.SubElement(element, "system-out").text = printable_lines(case.message)
        return
    outcome = ET.SubElement(element, case.outcome, {"message": printable_lines(case.message)})
    outcome.text = printable_lines(case.detail) or None

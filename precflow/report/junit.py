"""JUnit XML for build servers: one case for the verdict, one a stage, one a module of the first two levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from precflow import streams
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report import highlights, wording
from precflow.report.model import ReportModel, Row, StageView
from precflow.report.tree import levels

MOST_CASES = 1000  # of modules; more than a build server shows, and a model of 200 000 modules would make a file of 30 MB
LEVELS = 2  # `encoder` and `encoder.layers.0`: a list that people can read
_IN_WORDS = {"failure": "failed", "error": "without evidence", "skipped": "skipped", "passed": "passed"}
_WORST_FIRST = tuple(_IN_WORDS)
_SHOWN = 10  # records told in the message of a failing case


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        suite: ``verdict``, ``stages`` or ``modules``.
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


def text(model: ReportModel) -> str:
    """Return the run as JUnit XML."""
    every = cases(model)
    root = ET.Element("testsuites", _totals(model.recipe, every))
    for suite in dict.fromkeys(case.suite for case in every):
        inside = [case for case in every if case.suite == suite]
        part = ET.SubElement(root, "testsuite", _totals(f"{model.recipe}.{suite}", inside))
        for case in inside:
            _append(part, model.recipe, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def cases(model: ReportModel) -> list[Case]:
    """Return every case: the verdict first, because a run can be inconclusive although each module passes."""
    name_of = {module: ".".join(levels(module)[:LEVELS]) or "(model)" for module in {row.measure.module for row in model.rows}}
    grouped: dict[str, list[Row]] = {}
    for row in model.rows:
        grouped.setdefault(name_of[row.measure.module], []).append(row)
    modules = [_module(name, rows) for name, rows in grouped.items()]
    return [_verdict(model), *(_stage(stage) for stage in model.stages), *_bounded(modules)]


def _bounded(modules: Sequence[Case]) -> list[Case]:
    """Return the cases of modules, the worst where there are too many; one case then stands for all others, and counts them."""
    if len(modules) <= MOST_CASES:
        return list(modules)
    ranked = sorted(range(len(modules)), key=lambda number: _WORST_FIRST.index(modules[number].outcome))
    kept, others = sorted(ranked[: MOST_CASES - 1]), [modules[number] for number in ranked[MOST_CASES - 1 :]]
    counted = Counter(case.outcome for case in others)
    told = ", ".join(f"{wording.count(many)} {_IN_WORDS[outcome]}" for outcome, many in counted.items())
    name = f"({wording.plural(len(others), 'other module')}: {told})"
    return [*(modules[number] for number in kept), Case("modules", name, others[0].outcome, told)]


def _verdict(model: ReportModel) -> Case:
    verdict = model.verdict
    outcome = {"aligned": "passed", "misaligned": "failure", "inconclusive": "error"}[verdict.verdict]
    starts = f"starts at {model.region.start}" if model.region.start else ""
    reasons = "; ".join(verdict.reasons)
    findings = [f"{finding.rule} {finding.title} ({finding.certainty}): {finding.fix}" for finding in model.findings]
    message = f"{verdict.verdict}: {starts or reasons}" if outcome != "passed" else ""
    name = "emulated target" if model.emulated else "both sides"
    return Case("verdict", f"verdict ({name})", outcome, message, "\n".join([reasons, *findings]), model.seconds)


def _stage(stage: StageView) -> Case:
    outcomes = {"kept": "passed", "run": "passed", "skipped": "skipped"}
    return Case("stages", stage.name, outcomes.get(stage.state, "failure"), stage.note or stage.state, seconds=stage.seconds)


def _module(name: str, rows: Sequence[Row]) -> Case:
    """Return the case of one module: wrong beats missing, missing beats nothing to judge, and only then it passed."""
    for outcome, statuses in (("failure", MISALIGNED_STATUSES), ("error", INCOMPLETE_STATUSES)):
        found = [row for row in rows if row.judged.status in statuses]
        if found:
            return Case("modules", name, outcome, _message(found, rows), "\n".join(_details(found)))
    if not any(row.judged.status in {"pass", "accepted"} for row in rows):
        return Case("modules", name, "skipped", "no record here could have failed")
    taken = sum(row.judged.status == "accepted" for row in rows)
    return Case("modules", name, "passed", wording.plural(taken, "accepted difference") if taken else "")


def _message(found: Sequence[Row], rows: Sequence[Row]) -> str:
    worst = highlights.worst_status([row.judged.status for row in found])
    starts = " (the error starts here)" if any(row.role == "introduces" for row in found) else ""
    return f"{wording.count(len(found))} of {wording.plural(len(rows), 'record')}, worst: {wording.words(worst)}{starts}"


def _details(found: Sequence[Row]) -> Iterable[str]:
    for row in sorted(found, key=lambda row: row.role != "introduces")[:_SHOWN]:
        yield f"{row.measure.record}: {wording.words(row.judged.status)}, {row.judged.reason or row.measure.reason or row.role}"
    if len(found) > _SHOWN:
        yield f"and {wording.count(len(found) - _SHOWN)} more in the report"


def _totals(name: str, inside: Sequence[Case]) -> dict[str, str]:
    def having(outcome: str) -> str:
        """Return how many cases ended so, as an attribute."""
        return str(sum(case.outcome == outcome for case in inside))

    return {
        "name": _clean(name),
        "tests": str(len(inside)),
        "failures": having("failure"),
        "errors": having("error"),
        "skipped": having("skipped"),
        "time": f"{sum(case.seconds for case in inside if case.suite == 'stages'):.3f}",
    }


def _append(suite: ET.Element, recipe: str, case: Case) -> None:
    facts = {"classname": _clean(f"{recipe}.{case.suite}"), "name": _clean(case.name), "time": f"{case.seconds:.3f}"}
    element = ET.SubElement(suite, "testcase", facts)
    if case.outcome == "passed":
        if case.suite == "modules" and case.message:
            ET.SubElement(element, "system-out").text = _clean(case.message)
        return
    told = ET.SubElement(element, case.outcome, {"message": _clean(case.message)})
    told.text = _clean(case.detail) or None


def _clean(text: str) -> str:
    """Return text that XML can hold and that a build server shows as it is read; other letters become visible escapes."""
    return streams.printable_lines(text)

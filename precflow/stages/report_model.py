"""Builds the model of a report: everything about two dumps, their comparison and their verdict as one typed value.

A run (``report.py``) and two dumps without a recipe (``two_dumps.py``) both build their model here.
"""

from __future__ import annotations

import datetime
import heapq
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from precflow import keys
from precflow.agent import redaction
from precflow.agent.contract import Identity, parse_identity
from precflow.comparison.detail.record import RecordDetail, examine_record
from precflow.config.schema import SIDES
from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.chain import name_starts
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.evidence.training import find_other_settings, moves_no_weight
from precflow.diagnosis.examined import choose_examined
from precflow.diagnosis.explained import Explanation
from precflow.diagnosis.findings import Finding, Outcome, Region, Suspect
from precflow.diagnosis.golden import GoldenRow
from precflow.diagnosis.operator_table import OperatorRow
from precflow.diagnosis.training.phases import PhaseState
from precflow.diagnosis.training.procedure import OptimizerFacts, follow_procedure
from precflow.diagnosis.training.updates import describe_still, find_still_parameters
from precflow.dumps.header import Header
from precflow.dumps.lookup import FoundRecord
from precflow.dumps.protocol import Dump
from precflow.environment.differences import find_differences
from precflow.environment.known_issues import GROUP, MetIssue, load_issues, meet, side_of
from precflow.environment.program import SourceDifference, compare_sources, read_sources
from precflow.environment.versions import list_versions
from precflow.judgement.curves import judge_curves_alone
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged, Verdict
from precflow.report.groups import group_rows
from precflow.report.highlights import ratio_of
from precflow.report.model import ReportModel, Row, SideView, StageView
from precflow.stages.job import Job
from precflow.version import __version__

PARTS_NOT_RUN = "which part is to blame was not told: that takes a run of both sides on this machine (docs/parts.md)"
MOST_DETAILS = 20
MOST_GRADIENTS = 5_000  # rows of parameters and steps
MOST_ELEMENTS = 1 << 25  # of all detailed records together; reading them takes about four seconds on one core


def build_model(  # noqa: PLR0913  two values, and what only a report shows
    job: Job,
    comparison: Comparison,
    findings: Iterable[Finding],
    *,
    whatifs: Iterable[Outcome] = (),
    operators: Iterable[OperatorRow] = (),
    phases: Sequence[PhaseState] = (),
    golden: Iterable[GoldenRow] = (),
    detailed: bool = True,
) -> ReportModel:
    """Return everything that a report shows of a comparison.

    Args:
        job: The run.
        comparison: Two dumps, and what the stages have made of them.
        findings: What the rules say, best first.
        whatifs: What the what-ifs have shown, the one that removes most first.
        operators: How exact each operator of the target is, where that was asked for.
        phases: The parts of a training step and which of them is guilty.
        golden: Records against a golden run, where one was made.
        detailed: With the worst records in full, whose tensors are read for it.
    """
    reference, target, region = comparison.reference, comparison.target, comparison.region
    measures, judged = comparison.measures, comparison.judged
    assert comparison.verdict is not None, "a report needs the stage judge before it"
    headers = (("reference", reference.header), ("target", target.header))
    roles = find_roles(region)
    rows = tuple(
        Row(measure, status, roles.get(measure.record, "unknown")) for measure, status in zip(measures, judged, strict=True)
    )
    differences = find_differences(reference.header.facts, target.header.facts)
    curves = tuple(comparison.outcomes)
    findings = tuple(findings)
    verdict = comparison.verdict
    if job.config.workload.parts and not comparison.parts:
        verdict = replace(verdict, warnings=(*verdict.warnings, PARTS_NOT_RUN))
    return replace(
        _describe_run(job, verdict, findings, [_describe_side(name, header) for name, header in headers]),
        region=replace(
            region,
            suspects=_with_shown_ratios(region, judged),
            notes=(*region.notes, *_describe_unexamined(region)),
        ),
        rows=rows,
        differences=differences,
        known_issues=_meet_issues(job, dict(headers), findings),
        sources=_compare_programs(reference, target),
        columns=tuple(job.config.report.columns),
        language=job.config.report.language,
        emulation=str(target.header.emulate.get("name", "")),
        whatifs=tuple(whatifs),
        parts=tuple(name_starts(comparison.parts, [(suspect.record, suspect.name) for suspect in region.suspects])),
        task_metrics=tuple(comparison.task_metrics),
        mends=tuple(comparison.mends),
        operators=tuple(operators),
        golden=tuple(golden),
        curves=curves,
        phases=tuple(phases),
        procedure=follow_procedure(
            reference.header,
            target.header,
            phases=phases,
            differences=differences,
            optimizer=OptimizerFacts(
                settings=find_other_settings(reference, target),
                steps=comparison.steps,
                without_updates=moves_no_weight(reference, target),
                still=tuple(describe_still(find_still_parameters(reference, target, measures))) if measures else (),
            ),
            rows=[(row.measure, row.judged) for row in rows],
            curves=curves,
        ),
        gradients=tuple(comparison.gradients.rows[:MOST_GRADIENTS]),
        groups=group_rows(rows),
        details=detail_worst(reference, target, rows, explanations=comparison.explanations) if detailed else (),
    )


def _compare_programs(reference: Dump, target: Dump) -> tuple[SourceDifference, ...]:
    """Return the sources that the sides do not have in common."""
    texts = (read_sources(reference.path), read_sources(target.path))
    return compare_sources(reference.header.facts, target.header.facts, texts)


def build_curves_model(
    job: Job, outcomes: Sequence[CurveOutcome], headers: Mapping[str, Header], findings: Iterable[Finding]
) -> ReportModel:
    """Return everything that a report shows of a run that compares nothing but curves.

    Args:
        job: The run.
        outcomes: What is said about each curve.
        headers: Side -> header of its dump; a side with a log alone has none.
        findings: What the rules say, best first.
    """
    logs = {side: Path(log[0]).name for side in SIDES if (log := job.side(side).log)}
    sides = [
        _describe_side(side, headers[side])
        if side in headers
        else SideView(side=side, title=f"a log, {logs[side]}", emulated=False, device=logs[side], dtype="")
        for side in SIDES
    ]
    return replace(_describe_run(job, judge_curves_alone(outcomes), findings, sides), curves=tuple(outcomes))


def _meet_issues(job: Job, headers: Mapping[str, Header], findings: Sequence[Finding]) -> tuple[MetIssue, ...]:
    """Return the known issues of both sides' versions; a dump of another tool says nothing of its own."""
    sides = {side: side_of(header.facts, list_versions(header.facts)) for side, header in headers.items() if header.facts}
    return meet(load_issues(job.team.get(GROUP, ())), sides, [(finding.rule, finding.where) for finding in findings])


def _describe_run(job: Job, verdict: Verdict, findings: Iterable[Finding], sides: Sequence[SideView]) -> ReportModel:
    """Return what a report shows of any run: which it is, and what ran."""
    return ReportModel(
        recipe=job.config.recipe,
        title=job.config.about.title,
        run=job.run,
        finished=datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        precflow=__version__,
        command=hide_home(job.command),
        sides=tuple(sides),
        verdict=verdict,
        region=Region(),
        findings=tuple(findings),
        rows=(),
        differences={},
        stages=tuple(StageView(name=name, state=state, seconds=took, note=note) for name, state, took, note in job.stages),
        recipe_yaml=hide_home(job.yaml),
        columns=(),
        seconds=round(time.monotonic() - job.began, 1),  # less than its stages together, if two were made at once
        emulated=any(side.emulated for side in sides),
    )


def hide_home(text: str) -> str:
    """Write ``~`` in place of the home folder: its path has the user's name, and reports are shown to others."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _with_shown_ratios(region: Region, judged: Sequence[Judged]) -> tuple[Suspect, ...]:
    """Return the suspects with the share of its limit that the record of each uses: what every table says of that record.

    The diagnosis ranks an operator by the error that it introduces itself, whose limit is another.
    """
    records = {suspect.record for suspect in region.suspects}
    shown = {one.record: one.ratio for one in judged if one.record in records and one.metric}
    return tuple(replace(suspect, ratio=shown.get(suspect.record, suspect.ratio)) for suspect in region.suspects)


def _describe_unexamined(region: Region) -> list[str]:
    """Say that causes were looked for at some of the suspects only."""
    count, examined = len(region.suspects), len(choose_examined(region.suspects))
    return [f"causes were looked for at {examined} of {count} suspects, one of each kind first"] if count > examined else []


def find_roles(region: Region) -> Mapping[str, str]:
    """Return the role of each judged record: what only carries on an accepted difference inherits it, though it is named."""
    carrying = {suspect.record for suspect in region.suspects if suspect.accepted}
    return {record: "inherits" if record in carrying else role for record, role in (region.roles or {}).items()}


def _describe_side(name: str, header: Header) -> SideView:
    facts = {key: redaction.redact_text(str(leaf)) for key, leaf in keys.flatten(header.facts)}
    device = header.device
    words = [device.kind, device.description, _version("torch", facts), _version("torch_npu", facts), header.dtype]
    words += [f"{header.ranks} ranks"] if header.ranks > 1 else []
    return SideView(
        side=name,
        title=", ".join(word for word in words if word) or "unknown: its dump has no header",
        emulated=device.emulated,
        device=device.name or "unknown device",  # of a dump without its header
        dtype=header.dtype,
        facts=facts,
        ranks=header.ranks,
    )


def _version(package: str, facts: Mapping[str, str]) -> str:
    version = facts.get(f"{package}.version") or facts.get(f"packages.{package}", "")
    return f"{package} {version}" if version else ""


def detail_worst(
    reference: Dump,
    target: Dump,
    rows: Sequence[Row],
    most: int = MOST_DETAILS,
    *,
    explanations: Iterable[Explanation] = (),
) -> tuple[RecordDetail, ...]:
    """Return the failing records in full: those that introduce the error first, then by how far they are over their limits.

    A module and its last operator have the same tensor, which is shown once. Tensors that were not stored are left out, and so
    are those that are too large for a report: ``precflow compare --record`` shows them.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        rows: Every record with its status.
        most: How many records to show.
        explanations: Of suspects, with the errors of both sides against float64.
    """
    worst = heapq.nsmallest(
        most * 4,  # more than needed, because _choose leaves out repetitions and tensors that are too large
        (row for row in rows if row.judged.status in MISALIGNED_STATUSES and row.measure.evidence == "tensors"),
        key=lambda row: (row.role != "introduces", -ratio_of(row), row.measure.order),
    )
    names = [parse_identity(row.measure.record) for row in worst]
    left, right = (_find_records(dump, set(names)) for dump in (reference, target))
    residuals = {(one.call, one.index): one.quantiles for explained in explanations for one in explained.residuals}
    details = []
    for name in _choose(names, left, right, most):
        examined = examine_record(reference, target, left[name], right[name])
        measured = residuals.get((name_call(left[name].call), left[name].record.index))
        if measured is not None and examined.detail is not None:
            examined = replace(examined, detail=replace(examined.detail, quantiles=measured))
        details.append(examined)
    return tuple(details)


def _choose(
    names: Sequence[Identity], left: dict[Identity, FoundRecord], right: dict[Identity, FoundRecord], most: int
) -> Iterator[Identity]:
    """Yield the records that are stored on both sides, have no tensors that were yielded before, and fit into the report."""
    seen: set[tuple[str, str]] = set()
    room = MOST_ELEMENTS
    for name in names:
        pair = [side[name].record for side in (left, right) if name in side]
        size = sum(math.prod(record.shape) for record in pair)
        if len(pair) < 2 or not all(record.stored for record in pair) or size > room:
            continue
        contents = (pair[0].key, pair[1].key)
        if contents in seen or len(seen) == most:
            continue
        seen.add(contents)
        room -= size
        yield name


def _find_records(dump: Dump, names: set[Identity]) -> dict[Identity, FoundRecord]:
    """Return the first output of each identity."""
    first: dict[Identity, FoundRecord] = {}
    modules = {name.module for name in names}
    for call in dump.calls():
        for record in call.outputs if call.module in modules else ():
            if record.identity in names:
                first.setdefault(record.identity, FoundRecord(call, record))
    return first

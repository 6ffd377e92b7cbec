"""Stage ``report``: all results of a run in one typed model, and from it page, Markdown, JSON, JUnit, SARIF, tables, events."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.agent.contract import DRAWS_PATCH
from precflow.config.schema import SIDES, checks_environment_alone, plain
from precflow.diagnosis.advice.whatif import apply_outcomes, find_confirming
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.findings import Finding
from precflow.diagnosis.golden import list_rows
from precflow.diagnosis.training.phases import PhaseState, begin_with_loss, tell_phases
from precflow.environment.known_issues import GROUP
from precflow.files import write_text
from precflow.language import ENGLISH
from precflow.report import environment_check as check_report
from precflow.report import tables, tensorboard
from precflow.report.formats import FORMATS, write
from precflow.report.highlights import keep_most_important
from precflow.report.model import ReportModel
from precflow.stages import curves, golden, machine, operators, scan, whatif
from precflow.stages.advise import REPRO, read_findings
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.commands import change_command, changes_nothing, describe_change, is_refused, look_command
from precflow.stages.comparison import read_comparison
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.judge import find_dtypes, judge_inputs
from precflow.stages.report_model import build_curves_model, build_model, hide_home
from precflow.stages.second_pass.passes import second
from precflow.stages.second_pass.region import NAME, read_scope

MODEL_FILE, CHECKS_FILE = "model.json", "checks.json"
PUBLIC = "public"
ROWS_KEPT = 1000  # in the model; the files of the report have more, measures and statuses have all


def read_model(folder: Path) -> ReportModel:
    """Return the model of a finished report. It has the ``ROWS_KEPT`` most important rows at most; the others are counted."""
    return read_value(folder / MODEL_FILE, ReportModel)


def _declare(job: Job) -> Mapping[str, Any]:
    return {
        "report": plain(job.config.report),
        "title": job.config.about.title,
        "templates": keys.file_digest(resources.directory("templates")),
        **({"translation": keys.file_digest(resources.directory("conf") / "translation")} if _is_translated(job) else {}),
        "recipe": job.yaml,
        "known_issues": [
            keys.file_digest(folder) for folder in (resources.directory("conf") / GROUP, *job.team.get(GROUP, ()))
        ],
    }


def _is_translated(job: Job) -> bool:
    return job.config.report.language != ENGLISH


def gather_model(job: Job, needs: Mapping[str, Path], *, detailed: bool = True) -> ReportModel:
    """Return everything that a report shows of a comparison, from the results of the stages before.

    Args:
        job: The run.
        needs: Folders of those stages by name.
        detailed: With the worst records in full, whose tensors are read for it.
    """
    outcomes = whatif.read_outcomes(needs)
    comparison = read_comparison(job, needs)
    phases = _tell_phases(job, needs, comparison)
    region = replace(comparison.region, notes=(*_describe_second_pass(needs), *comparison.region.notes))
    return build_model(
        job,
        replace(comparison, region=begin_with_loss(region, phases)),
        scan.link(propose(job, apply_outcomes(read_findings(needs["advise"]), outcomes)), scan.read_scan(needs)),
        whatifs=outcomes,
        operators=operators.read_table(needs),
        golden=list_rows(golden.read_golden(needs), {one.record: one.name for one in comparison.measures}),
        phases=phases,
        detailed=detailed,
    )


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    if checks_environment_alone(job.config):
        return _report_checks(job, folder, needs)
    if curves.are_all(job.config):
        return _report_curves(job, folder, needs)
    model = gather_model(job, needs)
    # Roles are in the rows already, and would be in the file once more for each of 200 000 records.
    write_value(folder / MODEL_FILE, keep_most_important(replace(model, region=replace(model.region, roles=None)), ROWS_KEPT))
    (folder / PUBLIC).mkdir()
    if (needs["advise"] / REPRO).is_dir():  # not into public/: it has tensors of the model
        shutil.copytree(needs["advise"] / REPRO, folder / REPRO)
    written = _write_all(model, folder, job.config.report.formats)
    if model.operators:  # the very file that another run takes as `operators.against`
        table = folder / PUBLIC / operators.TABLE_FILE
        write_value(table, model.operators)
        written = [*written, table]
    written += [*_copy_patch(needs, folder / PUBLIC), *_copy_scan(needs, folder / PUBLIC)]
    return StageResult(note=", ".join(path.name for path in written))


def _write_all(model: ReportModel, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the report into ``public/``, and beside it the tables, which have all records and are as large as they are."""
    shown = write(model, folder / PUBLIC, [name for name in formats if name in FORMATS])
    events = tensorboard.write(model, folder) if tensorboard.FOLDER in formats else []
    return [*shown, *tables.write(model, folder, formats), *events[:1]]  # one file stands for all three


def _copy_patch(needs: Mapping[str, Path], folder: Path) -> list[Path]:
    """Copy the patch for the draws of a script, the target's if both sides have one; it holds lines of the script only."""
    made = [needs[f"dump.{side}"] / DRAWS_PATCH for side in ("target", "reference")]
    for patch in filter(Path.is_file, made):
        return [Path(shutil.copyfile(patch, folder / DRAWS_PATCH))]
    return []


def _copy_scan(needs: Mapping[str, Path], folder: Path) -> list[Path]:
    """Copy page, SARIF and patch of a scan, where a source tree was named and they were asked for."""
    if scan.NAME not in needs:
        return []
    made = needs[scan.NAME] / scan.PUBLIC
    pages = {scan.PAGE: "scan.html", scan.CHINESE_PAGE: "scan.zh.html"}
    copied = [
        Path(shutil.copyfile(made / name, folder / there))
        for name, there in {**pages, scan.SARIF: scan.SARIF, scan.PATCH: scan.PATCH}.items()
        if (made / name).is_file()
    ]
    for page in copied:
        if page.name in pages.values():  # each of two languages leads to the other
            text = page.read_text(encoding="utf-8")
            for name, there in pages.items():
                text = text.replace(f'href="{name}"', f'href="{there}"')
            write_text(page, text)
    return copied


def _report_curves(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    outcomes = curves.read_outcomes(needs)
    headers = {side: open_dump(needs[f"dump.{side}"]).header for side in SIDES if f"dump.{side}" in needs}
    model = build_curves_model(job, outcomes, headers, propose(job, read_findings(needs["advise"])))
    write_value(folder / MODEL_FILE, model)
    (folder / PUBLIC).mkdir()
    return StageResult(note=", ".join(path.name for path in _write_all(model, folder, job.config.report.formats)))


def _report_checks(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    report = machine.describe(job.config.recipe, machine.read_checks(needs))
    write_value(folder / CHECKS_FILE, report)
    written = check_report.write_files(report, folder / PUBLIC, job.config.report.formats, job.config.report.language)
    return StageResult(note=", ".join(path.name for path in written))


def read_check_report(folder: Path) -> check_report.CheckReport:
    """Return what a finished report says of a check of environments alone."""
    return read_value(folder / CHECKS_FILE, check_report.CheckReport)


def _tell_phases(job: Job, needs: Mapping[str, Path], comparison: Comparison) -> tuple[PhaseState, ...]:
    reference, target, measures = comparison.reference, comparison.target, comparison.measures
    assert comparison.verdict is not None, "a report needs the stage judge before it"
    return tell_phases(
        reference,
        target,
        measures=measures,
        judged=comparison.judged,
        verdict=comparison.verdict,
        region=comparison.region,
        judge_input=judge_inputs(job, needs, reference, target, find_dtypes(reference, target, measures)),
    )


def propose(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with whole commands to try: what each proposes, else the what-if that would confirm it."""
    return [_add_command(job, finding) for finding in _propose_whatifs(job, findings)]


def _propose_whatifs(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """Propose to confirm the findings that propose nothing else to try, where a what-if can do it and none was run."""
    config = job.config
    can_run = "target" in config.sides and not (config.target.dump or config.target.log or config.workload.script)
    if config.whatif or config.stages or not can_run:
        return list(findings)
    whatifs = whatif.load_whatifs(job)
    return [
        replace(finding, try_it=f"whatif={finding.rule}")
        if not finding.try_it and finding.certainty != "certain" and find_confirming(finding, whatifs)
        else finding
        for finding in findings
    ]


def _add_command(job: Job, finding: Finding) -> Finding:
    """Complete the change that a finding proposes: add the whole command line, and how it differs from this run's.

    A change that precflow would refuse, or that is in force already, is left out; the command that shows more takes its place.
    """
    if not finding.try_it or is_refused(job, finding.try_it) or changes_nothing(job, finding.try_it):
        return replace(finding, try_it=hide_home(look_command(job, finding.look)), change="", look="")
    return replace(
        finding,
        look="",
        try_it=hide_home(change_command(job, finding.try_it)),
        change=hide_home(describe_change(job, finding.try_it)),
    )


def _describe_second_pass(needs: Mapping[str, Path]) -> list[str]:
    """Return a note on the second pass of escalating capture: what it records, or why there is none."""
    if NAME not in needs:
        return []
    scope = read_scope(needs[NAME])
    if not scope.needed:
        return [scope.why]
    return [f"the second pass {'has not run yet' if second('judge') not in needs else 'has run'}: {scope.why}"]


STAGE = Stage(
    name="report",
    place=270,
    reads=(
        "scan",
        "dump",
        "curves",
        "compare",
        "judge",
        "localize",
        "region",
        "golden",
        "introduced",
        "chain",
        "task_metrics",
        "mend",
        "operators",
        "advise",
        "whatif",
    ),
    declare=_declare,
    make=_make,
    # Of any other recipe it reads no checks: they are made at every run, and it would be written anew each time.
    reads_also=lambda config, _: (machine.NAME,) if checks_environment_alone(config) else (),
    without_records=True,
)

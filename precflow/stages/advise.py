"""Stage ``advise``: applies the rules to the measured evidence, which gives the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.config.schema import SIDES
from precflow.diagnosis.advice import rule_files, rules
from precflow.diagnosis.advice.repro import SCRIPT
from precflow.diagnosis.evidence.collect import collect, keep_tensors
from precflow.diagnosis.evidence.of_run.curves import gather_curves
from precflow.diagnosis.findings import Finding
from precflow.stages import curves
from precflow.stages.artifacts import read_lines, write_lines
from precflow.stages.commands import key_of
from precflow.stages.comparison import read_comparison
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.second_pass.passes import second
from precflow.stages.second_pass.region import NAME, read_scope

FINDINGS_FILE = "findings.jsonl"
REPRO = "repro"
"""Folder with a script that runs the first suspect alone, where its tensors were kept."""


def read_findings(folder: Path) -> list[Finding]:
    """Return the findings, best first."""
    return read_lines(folder / FINDINGS_FILE, Finding)


def _declare(job: Job) -> Mapping[str, Any]:
    files = [file for folder in job.team.get("rule", ()) for file in folder.glob("*.yaml") if file.is_file()]
    of_team = sorted(map(keys.file_digest, files))  # sorted: the same rules in other folders give the same advice
    return {
        "rules": keys.file_digest(_rule_folder()),
        "translation": keys.file_digest(resources.directory("conf") / "translation"),  # of evidence in what rules say
        **({"rules of the team": of_team} if of_team else {}),
        "same": list(job.config.environment.same),
        "recipe": job.config.recipe,
        "keep_tensors": keep_tensors(job.config),
        "repro": keys.file_digest(resources.directory("templates") / SCRIPT),
    }


def _rule_folder() -> Path:
    return resources.directory("conf") / "rule"


def collect_evidence(job: Job, needs: Mapping[str, Path], *, repro: Path | None = None) -> dict[str, Any]:
    """Return all evidence of a run, from the results of the stages that ``advise`` needs.

    Args:
        job: The run.
        needs: Folders of those stages by name.
        repro: Folder for a script that runs the first suspect alone; ``None`` for no script.
    """
    return collect(read_comparison(job, needs), repro)


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    if curves.are_all(job.config):
        evidence = {"recipe": job.config.recipe, **gather_curves(curves.read_outcomes(needs))}
    else:
        evidence = collect_evidence(job, needs, repro=folder / REPRO)
    if NAME in needs and second("judge") not in needs and read_scope(needs[NAME]).needed:
        # The second pass waits for the other side. It records the suspects' tensors, so no finding has to propose to keep them.
        evidence["keep_tensors"] = ""
    findings = _advise(job, evidence)
    write_lines(folder / FINDINGS_FILE, findings)
    return StageResult(note=f"{findings[0].rule} {findings[0].title}" if findings else "no findings")


def _advise(job: Job, evidence: Mapping[str, Any]) -> list[Finding]:
    known = rule_files.load_rules([_rule_folder()], job.team.get("rule", ()))
    return [leave_out_idle(job, finding) for finding in rules.advise(evidence, known)]


def leave_out_idle(job: Job, finding: Finding) -> Finding:
    """Return a finding without what would change nothing in this run.

    Nothing can be tried where both sides are given, and nothing of a side that is. A script is run as it is: it chooses its
    element types itself, and no call of it is replaced.
    """
    given = [side for side in SIDES if job.side(side).dump or job.side(side).log]
    if len(given) == len(SIDES):
        return replace(finding, try_it="", confirm="")
    is_script = bool(job.config.workload.script)
    changed = {key_of(word) for word in finding.try_it.split()}
    idle = {f"{side}.dtype" for side in (SIDES if is_script else given)}
    return replace(
        finding,
        try_it="" if changed & idle else finding.try_it,
        confirm="" if is_script or "target" in given else finding.confirm,
    )


STAGE = Stage(
    name="advise",
    place=250,
    reads=(
        "dump",
        "curves",
        "determinism",
        "compare",
        "judge",
        "localize",
        "region",
        "introduced",
        "chain",
        "task_metrics",
        "mend",
        "whatif.suspects_alone",
    ),
    declare=_declare,
    make=_make,
    without_records=True,
)

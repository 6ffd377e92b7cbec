"""Stage ``advise``: measured evidence through the rules, to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.diagnosis import rule_files, rules
from precflow.diagnosis.evidence.collect import collect, keep_tensors
from precflow.diagnosis.findings import Finding
from precflow.stages.artifacts import read_lines, write_lines
from precflow.stages.compare import read_measures
from precflow.stages.determinism import read_reproduction
from precflow.stages.job import Job, Made, Stage
from precflow.stages.judge import read_judged
from precflow.stages.localize import read_region
from precflow.stages.passes import latest, newest, open_evidence, second
from precflow.stages.region import NAME, read_scope

FINDINGS_FILE = "findings.jsonl"


def read_findings(folder: Path) -> list[Finding]:
    """Return the findings, best first."""
    return read_lines(folder / FINDINGS_FILE, Finding)


def _rule_folder() -> Path:
    return resources.directory("conf") / "rule"


def _of_team(job: Job) -> tuple[Path, ...]:
    return job.team.get("rule", ())


def _digests(folders: Sequence[Path]) -> list[str]:
    return sorted(keys.file_digest(file) for folder in folders for file in folder.glob("*.yaml") if file.is_file())


def _declare(job: Job) -> Mapping[str, Any]:
    return {
        "rules": keys.file_digest(_rule_folder()),
        **({"rules of the team": digests} if (digests := _digests(_of_team(job))) else {}),
        "same": list(job.config.environment.same),
        "recipe": job.config.recipe,
        "keep_tensors": keep_tensors(job.config),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    reproduction = read_reproduction(latest(needs, "determinism"))
    evidence = collect(
        open_evidence(needs, "reference"),
        open_evidence(needs, "target"),
        region=read_region(latest(needs, "localize")),
        measures=read_measures(latest(needs, "compare")),
        judged=read_judged(latest(needs, "judge")),
        config=job.config,
        blockers=reproduction.blockers,
        incomplete=reproduction.incomplete,
    )
    if _pending(needs):
        evidence["keep_tensors"] = ""
    findings = rules.advise(evidence, rule_files.load_rules([_rule_folder()], _of_team(job)))
    if job.config.reference.dump and job.config.target.dump:  # nothing runs, so there is nothing to try
        findings = [replace(finding, try_it="") for finding in findings]
    write_lines(folder / FINDINGS_FILE, findings)
    return Made(note=f"{findings[0].rule} {findings[0].title}" if findings else "no findings")


def _pending(needs: Mapping[str, Path]) -> bool:
    """Tell whether a second pass will fetch the tensors of the suspects, once the other side has run."""
    return NAME in needs and second("judge") not in needs and read_scope(needs[NAME]).needed


def stage(*, again: bool, escalating: bool = False) -> Stage:
    """Return the stage; ``again`` where there is a second pass whose evidence it takes.

    Args:
        again: The second pass has run.
        escalating: There is a region that says whether there will be one.
    """
    needs = ("dump.reference", "dump.target", "determinism", "compare", "judge", "localize")
    chosen = (NAME,) if escalating else ()
    return Stage(name="advise", needs=(*newest(needs, again=again), *chosen), declare=_declare, make=_make)

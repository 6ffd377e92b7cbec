"""The one place where the bench asks precflow: two dumps go in, what it says comes out. Nothing else is told to it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from precflow.agent.contract import parse_identity
from precflow.config.composition import compose
from precflow.diagnosis.findings import Suspect
from precflow.run.jobs import make_job
from precflow.stages.advise import read_findings
from precflow.stages.artifacts import cache_reads
from precflow.stages.judge import read_judged, read_verdict
from precflow.stages.localize import read_region
from precflow.stages.passes import latest
from precflow.stages.registry import instances


class Named(NamedTuple):
    """A call that was named as a suspect; ``operator`` is ``""`` for a module."""

    module: str
    call: int
    operator: str
    ordinal: int
    phase: str


@dataclass(frozen=True)
class Said:
    """What a diagnosis said of two dumps.

    Attributes:
        verdict: ``aligned``, ``misaligned`` or ``inconclusive``.
        named: The suspects, most suspect first.
        findings: Rule, certainty and place of each finding, best first.
        ratio: Largest share of its limit that a record uses; above 1 fails.
        blind: Share of the compared records whose limit could not fail.
        seconds: Time of the diagnosis, without capture and without writing the report.
    """

    verdict: str
    named: tuple[Named, ...]
    findings: tuple[tuple[str, str, str], ...]
    ratio: float
    blind: float
    seconds: float


def diagnose(reference: Path, target: Path, folder: Path) -> Said:
    """Run recipe ``compare_dumps`` in this process, without its report, and return what its stages say.

    A floor of noise that the recipe measures or is given belongs here too, so that nothing but dumps is told.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        folder: For what the stages write; emptied first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    sides = [f"reference.dump={reference.absolute()}", f"target.dump={target.absolute()}"]
    job = make_job(compose(["+recipe=compare_dumps", *sides]), command="precflow +recipe=compare_dumps")
    made: dict[str, Path] = {}
    with cache_reads():
        for stage in instances(job.config):
            if stage.name == "report":
                continue
            made[stage.name] = folder / stage.name
            made[stage.name].mkdir(parents=True)
            stage.make(job, made[stage.name], {name: made[name] for name in stage.needs})
        seconds = time.perf_counter() - began
        return _read(made, seconds)


def _read(made: dict[str, Path], seconds: float) -> Said:
    verdict = read_verdict(latest(made, "judge"))
    judged = read_judged(latest(made, "judge"))
    findings = read_findings(made["advise"])
    return Said(
        verdict.verdict,
        tuple(dict.fromkeys(map(name_of, read_region(latest(made, "localize")).suspects))),
        tuple((finding.rule, finding.certainty, finding.where) for finding in findings),
        max([one.ratio for one in judged if one.status in {"pass", "fail"}], default=0.0),
        1 - verdict.could_fail / max(verdict.compared, 1),
        seconds,
    )


def name_of(suspect: Suspect) -> Named:
    """Return the call of a suspect."""
    identity = parse_identity(suspect.record)
    return Named(identity.module, identity.call, identity.operator, identity.ordinal, identity.phase)


def plain(said: Said) -> dict[str, Any]:
    """Return it for a JSON line."""
    return {**vars(said), "named": [list(named) for named in said.named], "findings": [list(one) for one in said.findings]}

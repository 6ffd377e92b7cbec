"""The one place where the bench asks precflow: two dumps go in, with the reference's noise floor, and what it says comes out.

Nothing else is told to it, and the floor is measured without the target.
"""

from __future__ import annotations

import io
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from precflow.agent import request as requests
from precflow.agent.contract import NOISE_FILE, NOISES, REQUEST_SCHEMA, parse_identity
from precflow.agent.events import Events
from precflow.agent.replay.evaluate import evaluate
from precflow.config.composition import compose
from precflow.diagnosis.findings import Suspect
from precflow.dumps.formats import read_dump
from precflow.run.jobs import make_job
from precflow.stages import evaluation, introduced, noise
from precflow.stages.advise import read_findings
from precflow.stages.artifacts import cache_reads, write_lines, write_value
from precflow.stages.job import Job
from precflow.stages.registry import instances

_JUDGING = frozenset({"judge", "localize"})  # the stages that read floors


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
        introduced: Largest share of its line that an operator's own error uses; above 1 is a fault.
        evaluated: Number of outputs that were computed again in float64.
        blind: Share of the compared records whose limit could not fail.
        seconds: Time of the diagnosis, without capture and without writing the report.
    """

    verdict: str
    named: tuple[Named, ...]
    findings: tuple[tuple[str, str, str], ...]
    ratio: float
    introduced: float
    evaluated: int
    blind: float
    seconds: float


def diagnose(reference: Path, target: Path, folder: Path, floors: Path | None = None) -> Said:
    """Run recipe ``compare_dumps`` in this process, without its report, and return what its stages say.

    Operators are evaluated in this process, because an agent of its own would spend seconds on importing torch.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        folder: For what the stages write; emptied first.
        floors: What :func:`keep_floors` left: a recipe that runs its reference has a stage for it. ``None``: fixed limits.
    """
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    job = _job(reference, target)
    made: dict[str, Path] = {} if floors is None else {noise.NAME: floors}
    with cache_reads(), mock.patch.object(evaluation, "evaluate_here", _evaluate_here):
        for stage in instances(job.config):
            if stage.name == "report":
                continue
            needs = [*stage.needs, *([noise.NAME] if floors and stage.kind in _JUDGING else [])]
            made[stage.name] = folder / stage.name
            made[stage.name].mkdir(parents=True)
            stage.make(job, made[stage.name], {name: made[name] for name in needs})
        seconds = time.perf_counter() - began
        return _read(made, seconds)


def keep_floors(reference: Path, disturbed: Path, folder: Path) -> None:
    """Compare the disturbed runs of a reference with it and leave the noise floors, as stage ``noise`` does.

    Args:
        reference: Dump of the reference.
        disturbed: Has a dump for each of ``NOISES``; they are removed.
        folder: For the floors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    floors = noise.reduce_to_floors(_job(reference, disturbed), read_dump(reference), disturbed, NOISES)
    write_lines(folder / noise.FLOORS_FILE, floors)
    write_value(folder / NOISE_FILE, {"problem": ""})  # last: with it the floors are whole


def _job(reference: Path, target: Path) -> Job:
    sides = [f"reference.dump={reference.absolute()}", f"target.dump={target.absolute()}"]
    return make_job(compose(["+recipe=compare_dumps", *sides]), command="precflow +recipe=compare_dumps")


def _evaluate_here(_: Job, folder: Path) -> None:
    """Do what an agent does when it is asked to evaluate."""
    request = {"schema": REQUEST_SCHEMA, "action": "evaluate", "side": "reference", "output": str(folder), "device": ["cpu"]}
    evaluate(requests.parse(request), Events(io.StringIO()))


def _read(made: dict[str, Path], seconds: float) -> Said:
    judged, verdict, region = introduced.read_conclusion(made)
    errors = introduced.read_introduced(made)
    return Said(
        verdict.verdict,
        tuple(dict.fromkeys(map(name_of, region.suspects))),
        tuple((finding.rule, finding.certainty, finding.where) for finding in read_findings(made["advise"])),
        max([one.ratio for one in judged if one.status in {"pass", "fail"}], default=0.0),
        max([one.share for one in errors], default=0.0),
        len(errors),
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

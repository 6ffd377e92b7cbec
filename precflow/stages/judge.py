"""Stage ``judge``: applies limits to measures and gives the verdict."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.config.plain import plain
from precflow.judgement.judge import judge
from precflow.judgement.verdicts import Judged, Verdict
from precflow.stages.artifacts import read_lines, read_value, write_lines, write_value
from precflow.stages.compare import read_measures
from precflow.stages.determinism import read_reproduction
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Made, Stage

JUDGED_FILE = "judged.jsonl"
VERDICT_FILE = "verdict.json"


def read_judged(folder: Path) -> list[Judged]:
    """Return the status of every record."""
    return read_lines(folder / JUDGED_FILE, Judged)


def read_verdict(folder: Path) -> Verdict:
    """Return the verdict."""
    return read_value(folder / VERDICT_FILE, Verdict)


def _declare(job: Job) -> Mapping[str, Any]:
    today = _today().isoformat()
    return {
        "tolerance": plain(job.config.tolerance),
        "accepted": plain(job.config.accepted),
        "expired": [bool(entry.until) and entry.until < today for entry in job.config.accepted],
        "coverage": plain(job.config.coverage),
        "standards": keys.file_digest(resources.directory("conf") / "standard"),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    reproduction = read_reproduction(needs["determinism"])
    judged, verdict = judge(
        read_measures(needs["compare"]),
        job.config,
        reference_dtype=open_dump(needs["dump.reference"]).header.dtype or job.config.reference.dtype,
        target_dtype=open_dump(needs["dump.target"]).header.dtype or job.config.target.dtype,
        blockers=(*reproduction.blockers, *reproduction.incomplete, *reproduction.unseen),
        unrepeatable=reproduction.unrepeatable,
        today=_today(),
    )
    write_lines(folder / JUDGED_FILE, judged)
    write_value(folder / VERDICT_FILE, verdict)
    return Made(note=verdict.verdict)


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.timezone.utc).date()


STAGE = Stage(name="judge", needs=("dump.reference", "dump.target", "determinism", "compare"), declare=_declare, make=_make)

"""Stage ``judge``: applies limits to measures and gives the verdict."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.config.schema import plain
from precflow.config.vocabulary import ESCALATING
from precflow.dumps.reader import Dump
from precflow.dumps.two_passes import TwoPasses
from precflow.errors import StoreError
from precflow.judgement.judge import judge
from precflow.judgement.verdicts import STATUSES, VERDICTS, Judged, Verdict
from precflow.stages.artifacts import read_lines, read_once, read_value, write_lines, write_value
from precflow.stages.compare import read_measures
from precflow.stages.determinism import read_reproduction
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.passes import latest, second

JUDGED_FILE = "judged.jsonl"
VERDICT_FILE = "verdict.json"


def read_judged(folder: Path) -> list[Judged]:
    """Return the status of every record.

    Raises:
        StoreError: The file cannot be read, or has a word that is no status.
    """
    return read_once(_read_judged, folder / JUDGED_FILE)


def _read_judged(path: Path) -> list[Judged]:
    judged = read_lines(path, Judged)
    _check_words(path, {one.status for one in judged}, STATUSES)
    return judged


def read_verdict(folder: Path) -> Verdict:
    """Return the verdict.

    Raises:
        StoreError: The file cannot be read, or has a word that is no verdict.
    """
    verdict = read_value(folder / VERDICT_FILE, Verdict)
    _check_words(folder / VERDICT_FILE, {verdict.verdict}, VERDICTS)
    return verdict


def _check_words(path: Path, found: Collection[str], known: Sequence[str]) -> None:
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise StoreError(
            f"{path} says {', '.join(map(repr, unknown))}; expected {', '.join(known)}",
            next_step="remove the folder it is in and run the same command again; other stages are kept",
        )


def _declare(job: Job) -> Mapping[str, Any]:
    today = _today().isoformat()
    return {
        "tolerance": plain(job.config.tolerance),
        "accepted": plain(job.config.accepted),
        # The date itself is not in the key, or each day would judge again: only the entries that have expired by now are.
        "expired": [bool(entry.until) and entry.until < today for entry in job.config.accepted],
        "coverage": plain(job.config.coverage),
        "remedies": _remedies(job),
        "standards": keys.file_digest(resources.directory("conf") / "standard"),
        **_of_team(job),
    }


def _of_team(job: Job) -> Mapping[str, Any]:
    """Return the content of the team's standards that this run is judged by."""
    files = [folder / f"{name}.yaml" for name in job.config.tolerance.standards for folder in job.team.get("standard", ())]
    # The first folder wins if two have a standard of the same name: reversed, it is written last.
    found = {file.stem: keys.file_digest(file) for file in reversed(files) if file.is_file()}
    return {"standards of the team": found} if found else {}


def _remedies(job: Job) -> list[bool]:
    """Return the settings that decide which remedy the judge proposes for an undecided record.

    Only whether they are set matters, so that a larger budget, for instance, does not judge again.
    """
    capture = job.config.capture
    return [capture.detail == ESCALATING, bool(capture.budget), bool(capture.keep_last), bool(job.config.stages)]


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    reproduction = read_reproduction(latest(needs, "determinism"))
    measures = read_measures(latest(needs, "compare"))
    judged, verdict = judge(
        measures,
        job.config,
        reference_dtype=run_dtype(open_dump(needs["dump.reference"]), [one.reference_dtype for one in measures if one.judged]),
        target_dtype=run_dtype(open_dump(needs["dump.target"]), [one.target_dtype for one in measures if one.judged]),
        blockers=(*reproduction.blockers, *reproduction.incomplete, *reproduction.unseen),
        unrepeatable=reproduction.unrepeatable,
        second_pass=second("compare") in needs,
        today=_today(),
        folders=job.team.get("standard", ()),
    )
    write_lines(folder / JUDGED_FILE, judged)
    write_value(folder / VERDICT_FILE, verdict)
    return StageResult(note=verdict.verdict)


def run_dtype(dump: Dump | TwoPasses, recorded: Sequence[str]) -> str:
    """Return the floating point type that a side ran in: that of the dump's header, else that of most records."""
    most = Counter(dtype for dtype in recorded if dtype).most_common(1)
    return dump.header.dtype or (most[0][0] if most else "float32")


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.timezone.utc).date()


STAGE = Stage(name="judge", needs=("dump.reference", "dump.target", "determinism", "compare"), declare=_declare, make=_make)
SECOND = Stage(
    name=second(STAGE.name),
    needs=("dump.reference", "dump.target", second("determinism"), second("compare")),
    declare=_declare,
    make=_make,
)

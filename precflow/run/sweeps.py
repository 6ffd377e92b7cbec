"""The jobs of one command line (``-m``) as one table: on the screen, and as ``sweep.csv`` in the run folder of the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precflow.agent import redaction
from precflow.files import replacing
from precflow.report.tables import make_safe
from precflow.run.store import explain_disk_errors

if TYPE_CHECKING:
    import pandas as pd

    from precflow.run.runner import Outcome

TABLE_FILE = "sweep.csv"
_NOT_DONE = "could not be done"


@dataclass(frozen=True)
class EndedJob:
    """How one job of a command line ended.

    Attributes:
        words: Its overrides.
        folder: Its run folder.
        outcome: ``None`` if it could not be done.
        report: The page of its own report, or the folder of one without a page; ``None`` if it made none.
    """

    words: Sequence[str]
    folder: Path
    outcome: Outcome | None
    report: Path | None = None

    @property
    def code(self) -> int:
        """The exit code of the job; 2 if it could not be done."""
        return 2 if self.outcome is None else self.outcome.exit_code

    @property
    def text(self) -> str:
        """The outcome in words; a run of one side alone has no verdict."""
        return _NOT_DONE if self.outcome is None else self.outcome.verdict or "done, not judged"


def format_jobs(ended: Sequence[EndedJob], code: int) -> str:
    """Return the jobs for a screen: number, exit code, verdict, worst record, overrides that not all share, finding, report."""
    furthest = [job.outcome.furthest if job.outcome is not None else "" for job in ended]
    wide, wider = len(str(len(ended))), max(map(len, furthest))
    lines = [f" {len(ended)} jobs, exit {code}"]
    for number, (job, far, words) in enumerate(zip(ended, furthest, _list_own_words(ended), strict=True), start=1):
        lines.append(f"   {number:>{wide}}  exit {job.code}  {job.text:<18}{f' {far:<{wider}} ' if wider else ''} {words}")
        if job.outcome is not None and job.outcome.finding_shown:
            lines.append(f"   {'':>{wide}}          {job.outcome.finding_shown}")
        if job.report is not None:
            lines.append(f"   {'':>{wide}}          {job.report}")
    return "\n".join(lines)


def make_job_frame(ended: Sequence[EndedJob]) -> pd.DataFrame:
    """Return one row for each job, with the columns ``job`` to ``report``.

    ``worst`` is the share of its limit that the worst record uses, ``NaN`` where none is over its limit; ``overrides`` are
    those that not all jobs share.
    """
    import pandas as pd  # noqa: PLC0415  takes half a second

    outcomes = [job.outcome for job in ended]
    return pd.DataFrame(
        {
            "job": range(1, len(ended) + 1),
            "overrides": _list_own_words(ended),
            "verdict": [job.text for job in ended],
            "exit_code": [job.code for job in ended],
            "worst": [math.nan if outcome is None else outcome.worst for outcome in outcomes],
            "finding": ["" if outcome is None else outcome.finding for outcome in outcomes],
            "folder": [str(job.folder) for job in ended],
            "report": ["" if job.report is None else str(job.report) for job in ended],
        }
    )


def write_table(ended: Sequence[EndedJob]) -> Path | None:
    """Write the table of the jobs into the run folder of the first; return its path, ``None`` if no job has made a folder.

    Raises:
        StoreError: The folder cannot be written.
    """
    folder = next((job.folder for job in ended if job.folder.is_dir()), None)
    if folder is None:
        return None
    with explain_disk_errors(folder), replacing(folder / TABLE_FILE) as temporary:
        make_safe(make_job_frame(ended)).to_csv(temporary, index=False, lineterminator="\n")
    return folder / TABLE_FILE


def _list_own_words(ended: Sequence[EndedJob]) -> list[str]:
    """Return the overrides of each job that not all jobs share."""
    every = set(ended[0].words).intersection(*(job.words for job in ended))
    return [" ".join(redaction.redact_word(word) for word in job.words if word not in every) for job in ended]

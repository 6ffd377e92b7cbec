"""The command that goes on with a run where another side runs: this one, with nothing lost that was typed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from precflow.config.flags import parse
from precflow.run.steps import Place
from precflow.stages.job import Job

_TRUST = "PRECFLOW_TRUST"
_SIDES, _STORE, _RUNS, _SITE = "sides", "store", "runs", "+site"


def command_for(job: Job, where: Place, side: str) -> str:
    """Return the command line to type where a side runs.

    Overrides are those of this run; its place is told as an absolute path, for the other shell stands elsewhere. A site
    belongs to a machine, so that of the other one has to be filled in.

    Args:
        job: This run.
        where: Its folder and store.
        side: The side that is to run there.
    """
    trust = os.environ.get(_TRUST, "")
    front = [f"{_TRUST}={shlex.quote(trust)}"] if trust else []
    words = [shlex.quote(word) for word in (*_folders(job), *_kept(job))]
    return " ".join([*front, "precflow", *words, f"{_SIDES}=[{side}]", *map(shlex.quote, _place(job, where))])


def _folders(job: Job) -> Iterator[str]:
    for folder in parse(shlex.split(job.command)).config_dirs:
        yield from ("--config-dir", str(folder.resolve()))


def _kept(job: Job) -> Iterator[str]:
    """Yield the overrides that hold there too."""
    for word in job.overrides:
        key = word.partition("=")[0]
        if key == _SITE:
            yield f"{_SITE}=SITE"
        elif key not in {_SIDES, _STORE} and not (key == _RUNS and _is_own(job)):
            yield word


def _place(job: Job, where: Place) -> list[str]:
    """Return where the evidence is: in a store that was named, or in the run folder; a site names its own."""
    if job.config.store:
        return [f"{_STORE}={where.store.root.parent.resolve()}"]
    return [f"{_RUNS}={Path(job.config.runs).expanduser().resolve()}"] if _is_own(job) else []


def _is_own(job: Job) -> bool:
    """Tell whether the evidence lies in the run folder."""
    return not (job.config.store or job.config.site.store)

"""The command that goes on with a run where another side runs: this one, with nothing lost that was typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from precflow.run.steps import Place
from precflow.stages.commands import config_dirs, environment
from precflow.stages.job import Job

_SIDES, _STORE, _RUNS, _SITE, _RECIPE = "sides", "store", "runs", "+site", "+recipe"


def command_for(job: Job, where: Place, side: str) -> str:
    """Return the command line to type where a side runs.

    Overrides are those of this run; its place is told as an absolute path, for the other shell stands elsewhere. A site
    belongs to a machine, so that of the other one has to be filled in.

    Args:
        job: This run.
        where: Its folder and store.
        side: The side that is to run there.
    """
    words = [shlex.quote(word) for word in (*_folders(job), *_kept(job))]
    return " ".join([*environment(), "precflow", *words, f"{_SIDES}=[{side}]", *map(shlex.quote, _place(job, where))])


def _folders(job: Job) -> Iterator[str]:
    for folder in config_dirs(job):
        yield from ("--config-dir", str(folder.resolve()))


def _kept(job: Job) -> Iterator[str]:
    """Yield the overrides that hold there too."""
    for word in job.overrides:
        key, _, value = word.partition("=")
        if key == _RECIPE and value.rstrip('"').endswith(".yaml"):  # a file, whose path is relative to this shell's folder
            yield f"{_RECIPE}={Path(value.strip(chr(34))).resolve()}"
        elif key == _SITE:
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

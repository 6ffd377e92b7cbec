"""The command that continues a run on the other side's machine: this run's own command, adapted to a shell elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from precflow.stages.commands import config_dirs, environment_assignments
from precflow.stages.job import Job


def command_for_side(job: Job, side: str) -> str:
    """Return the command line to type where a side runs.

    It has the overrides of this run. Paths of stores, run folders and recipes become absolute, because the other shell may be
    in another folder. A site file belongs to one machine, so the other machine's has to be filled in for ``SITE``.

    Args:
        job: This run.
        side: The side that is to run there.
    """
    folders = [text for folder in config_dirs(job) for text in ("--config-dir", str(folder.resolve()))]
    words = [shlex.quote(word) for word in (*folders, *_overrides(job))]
    store = [shlex.quote(word) for word in _name_store(job)]
    return " ".join([*environment_assignments(), "precflow", *words, f"sides=[{side}]", *store])


def _overrides(job: Job) -> Iterator[str]:
    """Yield the overrides that are right on the other machine too."""
    for word in job.overrides:
        key, _, value = word.partition("=")
        if key == "+recipe" and value.rstrip('"').endswith(".yaml"):  # a file, and not a name that is looked up
            yield f"+recipe={Path(value.strip(chr(34))).resolve()}"  # chr(34) is ", which no f-string took before Python 3.12
        elif key == "+site":
            yield "+site=SITE"
        elif key not in {"sides", "store"} and not (key == "runs" and _is_in_run_folder(job)):
            yield word


def _name_store(job: Job) -> list[str]:
    """Return the override that leads to the dumps, ``[]`` if the site file names the store."""
    if job.config.store:  # as it was named: the recipe's name, which may have slashes, is added to it there as here
        return [f"store={Path(job.config.store).expanduser().resolve()}"]
    return [f"runs={Path(job.config.runs).expanduser().resolve()}"] if _is_in_run_folder(job) else []


def _is_in_run_folder(job: Job) -> bool:
    """Return whether the dumps are in the run folder: neither the recipe nor the site names a store."""
    return not (job.config.store or job.config.site.store)

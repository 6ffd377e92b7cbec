"""The command that continues a run on the other side's machine: this run's own command, adapted to a shell elsewhere."""

from __future__ import annotations

import shlex
from pathlib import Path

from precflow.config.sections.store_address import is_address
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
    words = [text for folder in config_dirs(job) for text in ("--config-dir", str(folder.resolve()))]
    in_run_folder = not (job.config.store or job.config.site.store)
    for word in job.overrides:
        key, _, value = word.partition("=")
        if key == "+recipe" and value.rstrip('"').endswith(".yaml"):  # a file, and not a name that is looked up
            file = Path(value.strip('"')).resolve()
            words.append(f"+recipe={file}")
        elif key == "+site":
            words.append("+site=SITE")
        elif key not in {"sides", "store"} and not (key == "runs" and in_run_folder):
            words.append(word)
    # The override that leads to the dumps stands last. A store that the site file names needs none.
    last = [f"sides=[{side}]"]
    if is_address(job.config.store):
        last.append(shlex.quote(f"store={job.config.store}"))
    elif job.config.store:  # as it was named: the recipe's name, which may have slashes, is added to it there as here
        last.append(shlex.quote(f"store={Path(job.config.store).expanduser().resolve()}"))
    elif in_run_folder:
        last.append(shlex.quote(f"runs={Path(job.config.runs).expanduser().resolve()}"))
    return " ".join([*environment_assignments(), "precflow", *map(shlex.quote, words), *last])

"""This run's command line, to be typed again: with a change, or on the machine of the other side."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from precflow.config.command_line import parse
from precflow.config.composition import compose
from precflow.config.sections.store_address import is_address
from precflow.errors import ConfigError
from precflow.stages.job import Job

_TRUST = "PRECFLOW_TRUST"
# A group -> the key that the group is chosen for. If both are typed, the key wins, so a change of the group has to remove it.
_CHOSEN = {"capture": "capture.detail"}


def environment_assignments() -> list[str]:
    """Return the assignments of environment variables to put before the command: ``PRECFLOW_TRUST`` if it is set."""
    trust = os.environ.get(_TRUST, "")
    return [f"{_TRUST}={shlex.quote(trust)}"] if trust else []


def config_dirs(job: Job) -> tuple[Path, ...]:
    """Return the folders of ``--config-dir``, as typed."""
    return parse(shlex.split(job.command)).config_dirs


def key_of(word: str) -> str:
    """Return the key that an override sets or removes, or the group that it chooses from.

    >>> key_of("+recipe=minilm"), key_of("~target.variables.A"), key_of("seed=1=2")
    ('recipe', 'target.variables.A', 'seed')
    """
    return word.lstrip("+~").partition("=")[0]


def is_refused(job: Job, change: str) -> bool:
    """Tell whether precflow would refuse this run's command for a change, such as a what-if for a script.

    A command that is refused without the change too, because secrets were taken out of it, is not refused for the change.

    Args:
        job: This run.
        change: Overrides, separated by spaces.
    """
    return _is_unusable(job, change) and not _is_unusable(job, "")


def changes_nothing(job: Job, change: str) -> bool:
    """Tell whether a change is in force already: the recipe with it is this run's recipe."""
    try:
        with_it, without = (
            compose(words, config_dirs=config_dirs(job), complete=False)
            for words in (_change_words(job, change), list(job.overrides))
        )
    except ConfigError:  # of a command whose secrets were taken out
        return False
    return with_it.config == without.config


def look_command(job: Job, words: str) -> str:
    """Return the command line that shows more of a finding.

    Args:
        job: This run.
        words: Those behind ``precflow``, with ``REFERENCE`` and ``TARGET`` for the dumps of this run; ``""`` for none.
    """
    names = {"REFERENCE": "reference", "TARGET": "target"}
    shown = re.sub(r"\b(REFERENCE|TARGET)\b", lambda found: shlex.quote(name_dump(job, names[found[0]])), words)
    return f"precflow {shown}" if words else ""


def name_dump(job: Job, side: str) -> str:
    """Return what to type for the dump of a side: the folder of one that is given, else ``RUN:SIDE`` or ``STORE:SIDE``."""
    config, given = job.config, job.side(side).dump
    if given:
        return str(given)
    store = config.store or config.site.store
    if store and not is_address(store):
        return f"{Path(store) / config.recipe}:{side}"
    name = config.name or config.recipe
    return f"{name if config.runs == 'runs' else Path(config.runs) / name}:{side}"


def _is_unusable(job: Job, change: str) -> bool:
    try:
        compose(_change_words(job, change), config_dirs=config_dirs(job), complete=False)
    except ConfigError:
        return True
    return False


def change_command(job: Job, change: str) -> str:
    """Return the command line that runs this recipe again with this run's overrides and a change.

    Args:
        job: This run.
        change: Overrides, separated by spaces; this run's overrides of the same keys are left out.
    """
    folders = [text for folder in config_dirs(job) for text in ("--config-dir", str(folder))]
    words = map(shlex.quote, (*folders, *_change_words(job, change)))
    return " ".join([*environment_assignments(), "precflow", *words])


def _change_words(job: Job, change: str) -> list[str]:
    words = change.split()
    return [*_without({key_of(word) for word in words}, job.overrides), *words]


def describe_change(job: Job, change: str) -> str:
    """Return how a change alters this run's command, as text: ``a=1   b=2   instead of   a=0``."""
    words = change.split()
    kept = set(_without({key_of(word) for word in words}, job.overrides))
    gone = [word for word in job.overrides if word not in kept]
    return "   ".join([*words, *(["instead of", *gone] if gone else [])])


def _without(keys: Iterable[str], words: Iterable[str]) -> Iterator[str]:
    gone = {name for key in keys for name in (key, _CHOSEN.get(key, key))}
    return (word for word in words if key_of(word) not in gone)


def command_for_side(job: Job, side: str) -> str:
    """Return the command line that continues this run where a side runs: on another machine, in another folder.

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

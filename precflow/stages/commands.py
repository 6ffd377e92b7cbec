"""The command line of this run, with a change: whole, to be pasted, and as the difference to this run's own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from precflow.config.command_line import parse
from precflow.stages.job import Job

_TRUST = "PRECFLOW_TRUST"
_CHOSEN = {"capture": "capture.detail"}  # a group -> the key that it is chosen for, and that beats the choice where it is typed


def environment_assignments() -> list[str]:
    """Return the assignments to put before the command: whom the user trusts."""
    trust = os.environ.get(_TRUST, "")
    return [f"{_TRUST}={shlex.quote(trust)}"] if trust else []


def config_dirs(job: Job) -> tuple[Path, ...]:
    """Return the folders of ``--config-dir``, as typed."""
    return parse(shlex.split(job.command)).config_dirs


def key_of(word: str) -> str:
    """Return the key that an override sets or takes away, or the group that it chooses from.

    >>> key_of("+recipe=minilm"), key_of("~target.variables.A"), key_of("seed=1=2")
    ('recipe', 'target.variables.A', 'seed')
    """
    return word.lstrip("+~").partition("=")[0]


def change_command(job: Job, change: str) -> str:
    """Return the command line that runs this recipe again, everything as it was overridden, but for a change.

    Args:
        job: This run.
        change: Overrides, separated by spaces; what was typed for the same keys is left out.
    """
    words = change.split()
    kept = _without({key_of(word) for word in words}, job.overrides)
    folders = [text for folder in config_dirs(job) for text in ("--config-dir", str(folder))]
    return " ".join([*environment_assignments(), "precflow", *map(shlex.quote, (*folders, *kept, *words))])


def describe_change(job: Job, change: str) -> str:
    """Return what a change makes of this run's command, in words with wide gaps: ``a=1   b=2   instead of   a=0``."""
    words = change.split()
    kept = set(_without({key_of(word) for word in words}, job.overrides))
    gone = [word for word in job.overrides if word not in kept]
    return "   ".join([*words, *(["instead of", *gone] if gone else [])])


def _without(keys: Iterable[str], words: Iterable[str]) -> Iterator[str]:
    gone = {name for key in keys for name in (key, _CHOSEN.get(key, key))}
    return (word for word in words if key_of(word) not in gone)

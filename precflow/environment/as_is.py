"""Reads what the agent of a side saw of runs in which the recipe changed nothing (action ``as_is``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from precflow.agent import intake
from precflow.agent.contract import AS_IS_FILE
from precflow.dumps.records import Count
from precflow.errors import StoreError

AS_IT_IS, MOVED, AGAIN = "as_it_is", "draws_on_cpu", "again"
"""The runs of a side, as folders: as it is, the same with its draws on the CPU, and a repetition of the last of the two."""

Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


@dataclass(frozen=True)
class NotedStep:
    """One step of an optimizer.

    Attributes:
        step: Number of the step, from 0.
        optimizer: Place of the optimizer among those that step, from 0.
        losses: What backward was called on in it; ``None`` for a number that is not finite.
        norm: Norm of all gradients together; ``None`` if there were none, or one was not finite.
        sketch: One sketch of all of them.
    """

    step: Count
    optimizer: Count
    losses: tuple[Number | None, ...]
    norm: Number | None
    sketch: tuple[Number, ...] | None


@dataclass(frozen=True)
class NotedRun:
    """One run of one rank: kind of its ``device``, why it could not be made, whether it drew on its device, and its steps."""

    device: str
    problem: str
    has_drawn: bool
    steps: tuple[NotedStep, ...]


@dataclass(frozen=True)
class SideRuns:
    """The runs of a side, each with its ranks; a run that was not made has none."""

    as_it_is: tuple[NotedRun, ...]
    moved: tuple[NotedRun, ...] = ()
    again: tuple[NotedRun, ...] = ()

    @property
    def has_drawn(self) -> bool:
        """Any rank drew numbers on its device."""
        return any(run.has_drawn for run in self.as_it_is)

    @property
    def compared(self) -> tuple[NotedRun, ...]:
        """The run that a side of another kind of device is compared with."""
        return self.moved or self.as_it_is


def is_whole(folder: Path, ranks: int) -> bool:
    """Tell whether a run has left the file of every rank."""
    return all((folder / (AS_IS_FILE % rank)).is_file() for rank in range(ranks))


def read_side(folder: Path, ranks: int) -> SideRuns:
    """Return the runs of a side.

    Raises:
        StoreError: A file cannot be read, or is not what the agent writes.
    """
    runs = (read_run(folder / name, ranks) if (folder / name).is_dir() else () for name in (AS_IT_IS, MOVED, AGAIN))
    return SideRuns(*runs)


def read_run(folder: Path, ranks: int) -> tuple[NotedRun, ...]:
    """Return one run, by rank; see :func:`read_side`."""
    return tuple(_read_file(folder / (AS_IS_FILE % rank)) for rank in range(ranks))


def _read_file(path: Path) -> NotedRun:
    try:
        return msgspec.convert(intake.read_json(path), NotedRun)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}", next_step="remove the folder that it is in and run the same command again"
        ) from error

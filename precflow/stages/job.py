"""What every stage gets: the recipe, how it was asked for, and a way to say how it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from precflow.config.schema import RunConfig, Side
from precflow.sides.launch import Agents


@dataclass(frozen=True)
class Job:
    """One composed recipe on its way.

    Attributes:
        config: The recipe.
        command: Command line that starts the same run again.
        yaml: The composed recipe as text, without site.
        ci: Running in continuous integration: an emulated device must be asked for by its single name.
        trusted: Packages whose ``_target_`` may be resolved.
        import_paths: Folders where the user's own modules are looked for, after the interpreter's own.
        cache: Folder for what can be made again (the packed agent).
        overrides: What of the recipe was overridden, as people write it, and what was chosen: ``+recipe=NAME``.
        run: Number of this run in its folder.
        started: ISO time, UTC, to the minute.
        stages: ``(name, state, seconds, note)`` of what was done before, for the report.
        say: Called with a short text while a stage works.
        team: Folders of a team: ``standard`` and ``rule``, besides the shipped ones.
        agents: Where the agent of a side waits between its stages; ``None``: each stage starts its own.
    """

    config: RunConfig
    command: str
    yaml: str
    ci: bool
    trusted: tuple[str, ...]
    import_paths: tuple[str, ...]
    cache: Path
    overrides: tuple[str, ...] = ()
    run: int = 0
    started: str = ""
    stages: tuple[tuple[str, str, float, str], ...] = ()
    say: Callable[[str], None] = field(default=lambda _: None)
    team: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    agents: Agents | None = None

    def side(self, name: str) -> Side:
        """Return the recipe's section of a side."""
        side: Side = getattr(self.config, name)
        return side


@dataclass(frozen=True)
class Made:
    """What a stage says when it is done.

    Attributes:
        note: One line for the screen.
        seal: Hash of what was made; ``""`` where the store is to compute it from the files.
        damaged: What it read was not whole: the next run makes it again, for a mended dump has the same key.
    """

    note: str = ""
    seal: str = ""
    damaged: bool = False


class Make(Protocol):
    """The work of a stage: read artifacts of its needs, write its own into ``folder``."""

    def __call__(self, job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
        """Do it."""


@dataclass(frozen=True)
class Stage:
    """One stage instance: what it needs, what it depends on, what it does.

    Attributes:
        name: Such as ``compare``, or ``dump.target``.
        needs: Names of the instances whose artifacts it reads.
        declare: Plain data that its key is made of, besides its needs and its version.
        make: The work.
        version: Raised when the same declaration gives other artifacts.
        place: Plain data about where it runs. Part of the key, but another machine may look for the rest alone.
        side: The side it belongs to, or ``""``.
        told_by: Those of its needs that belong to its declaration: what ``told`` reads.
        told: Plain data of them, for the key. What else is in them changes nothing.
        resumes: It goes on with what it left when it was killed.
    """

    name: str
    needs: tuple[str, ...]
    declare: Callable[[Job], Mapping[str, Any]]
    make: Make
    version: int = 1
    place: Callable[[Job], Mapping[str, Any]] | None = None
    side: str = ""
    told_by: tuple[str, ...] = ()
    told: Callable[[Mapping[str, Path]], Mapping[str, Any]] | None = None
    resumes: bool = False

    @property
    def kind(self) -> str:
        """The stage without its side and its pass, as ``stages=[...]`` names it."""
        return self.name.partition("@")[0].partition(".")[0]

    @property
    def label(self) -> str:
        """The stage without its side, as screens show it: ``dump@2`` is of the second pass."""
        _, mark, number = self.name.partition("@")
        return f"{self.kind}{mark}{number}"

"""What every stage gets (:class:`Job`), what a stage is (:class:`Stage`), and how a stage runs the agent of a side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from precflow.config.schema import RunConfig, Side
from precflow.sides.launch import Agents, run_agent

_BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1", "ASCEND_LAUNCH_BLOCKING": "1"}  # read when the device's library is loaded


@dataclass(frozen=True)
class Job:
    """One composed recipe that is being run, and the circumstances of the run.

    Attributes:
        config: The recipe.
        command: Command line that starts the same run again.
        yaml: The composed recipe as text, without what the site file says.
        ci: Running in continuous integration: an emulated device must be asked for by its single name.
        trusted: Packages whose ``_target_`` may be resolved.
        import_paths: Folders where the user's own modules are looked for, after the interpreter's own.
        cache: Folder for files that can be made again (the packed agent).
        overrides: The overrides of the command line, as people write them: ``+recipe=NAME``, ``key=value``.
        run: Number of this run in its folder.
        started: ISO time, UTC, to the minute.
        stages: ``(name, state, seconds, note)`` of each stage that is finished, for the report.
        say: Called with a short text while a stage works.
        advance: Called with what a stage has done, what it has to do, and in which unit, such as ``steps``.
        team: Folders of a team's ``standard`` and ``rule`` files, besides the shipped ones.
        agents: Keeps the agent of a side between its stages; ``None``: each stage starts its own.
        asked: Stages that the user chose; ``config.stages`` has what they need too.
        began: When the run began, by :func:`time.monotonic`.
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
    advance: Callable[[int, int, str], None] = field(default=lambda *_: None)
    team: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    agents: Agents | None = None
    asked: tuple[str, ...] = ()
    began: float = field(default_factory=time.monotonic)

    def side(self, name: str) -> Side:
        """Return the recipe's section of a side."""
        side: Side = getattr(self.config, name)
        return side


def ask_agent(job: Job, side: str, request: Mapping[str, Any], folder: Path) -> None:
    """Run the agent of ``side`` on ``request``, as the recipe says; it writes into ``folder``.

    Raises:
        SideError: The agent refused, crashed, hung, or left no result.
    """
    settings = job.side(side)
    run_agent(
        request,
        side=settings,
        folder=folder,
        variables={**(_BLOCKING if job.config.capture.debug else {}), **settings.variables},
        timeout=job.config.capture.timeout,
        on_progress=job.say,
        on_amount=job.advance,
        agents=job.agents,
    )


@dataclass(frozen=True)
class StageResult:
    """What a stage reports when it is done; its artifacts are in its folder.

    Attributes:
        note: One line for the screen.
        seal: Hash of the artifacts; ``""`` if the store is to compute it from the files.
        damaged: What the stage read was damaged, or an agent that it asked did not answer. The next run makes it again, because
            a repaired dump or machine has the same key.
    """

    note: str = ""
    seal: str = ""
    damaged: bool = False


class StageWork(Protocol):
    """The work of a stage: read artifacts of its needs, write its own into ``folder``."""

    def __call__(self, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
        """Do the work."""


@dataclass(frozen=True)
class Stage:
    """One stage instance: what it needs, what its result depends on, what it does.

    Attributes:
        name: Such as ``compare`` or ``dump.target``.
        needs: Names of the instances whose artifacts it reads.
        declare: Returns the plain data that its key is made of, besides its needs and its version.
        make: The work.
        version: Raised when the same declaration gives other artifacts.
        locate: Returns plain data about the machine that it runs on. It is the second half of the key: another machine, which
            cannot know it, finds the instance by the first half.
        side: The side that it belongs to, or ``""``.
        scope_needs: Those of its needs whose content belongs to the declaration: the region of a second pass.
        declare_scope: Returns the part of their content that the result depends on.
        reads_left: Files and folders that a run has left beside its records, in the dumps that it needs. They belong to the
            declaration, by the checksums in the store: the seal of a dump does not cover them.
        resumes: It continues with what an earlier attempt left when it was killed.
    """

    name: str
    needs: tuple[str, ...]
    declare: Callable[[Job], Mapping[str, Any]]
    make: StageWork
    version: int = 1
    locate: Callable[[Job], Mapping[str, Any]] | None = None
    side: str = ""
    scope_needs: tuple[str, ...] = ()
    declare_scope: Callable[[Mapping[str, Path]], Mapping[str, Any]] | None = None
    reads_left: tuple[str, ...] = ()
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

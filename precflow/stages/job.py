"""What a stage is (:class:`Stage`), what its instances get (:class:`Job`), and how they run the agent of a side."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from precflow.config.schema import RunConfig, Side
from precflow.dumps.requests import UserCode
from precflow.errors import SideError
from precflow.sides.launch import Agents, run_agent
from precflow.stages.breakdown import advise

MARK = "@2"  # ends the names of instances of the second pass
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

    @property
    def user_code(self) -> UserCode:
        """The user's own code that its workload may name."""
        return UserCode(self.trusted, self.import_paths)

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
    try:
        run_agent(
            request,
            side=settings,
            folder=folder,
            variables={**(_BLOCKING if job.config.capture.debug else {}), **settings.variables},
            timeout=job.config.capture.timeout,
            on_progress=job.say,
            on_amount=job.advance,
            agents=job.agents,
            device_log=job.config.capture.device_log,
        )
    except SideError as error:
        if error.breakdown is not None:
            error.breakdown = advise(error.breakdown, job.team)
        raise


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
class Instance:
    """One instance of a stage in a recipe: what it needs, what its result depends on, what it does.

    Attributes:
        name: Such as ``compare`` or ``dump.target``; in the second pass with ``@2`` at the end.
        needs: Names of the instances whose artifacts it reads.
        declare: Returns the plain data that its key is made of, besides its needs and its version.
        make: The work.
        version: See :class:`Stage`, as for the rest.
        locate: See there.
        side: The side that it belongs to, or ``""``.
        scope_needs: See there.
        declare_scope: See there.
        reads_left: See there.
        resumes: See there.
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
        return kind_of(self.name)

    @property
    def label(self) -> str:
        """Its name without its side, as screens show it: ``dump@2`` is of the second pass."""
        name, mark, number = self.name.partition("@")
        return f"{self.kind if self.side else name}{mark}{number}"


def kind_of(name: str) -> str:
    """Return the word for an instance in ``stages=[...]``: its name without its part and its pass.

    >>> kind_of("dump.target@2")
    'dump'
    """
    return name.partition("@")[0].partition(".")[0]


def _make_once(_: RunConfig) -> tuple[str, ...]:
    return ("",)


@dataclass(frozen=True)
class Stage:
    """A stage, as its file declares it in the constant ``STAGE``; :mod:`precflow.stages.registry` makes its instances.

    Attributes:
        name: What other stages read it by; up to the first dot or ``@`` it is the word in ``stages=[...]``.
        place: Stages come in this order. What a stage reads has a lower one.
        reads: The stages whose artifacts it reads, as far as a recipe has them. The name of a stage means all its instances,
            or for a stage of a side those of this side; ``environment.target`` means one. Once there is a second pass, what it
            has measured and judged anew is read in place of the first, and what it has recorded is read as well.
        declare: Returns the plain data that its key is made of, besides its needs and its version. Like `make` and `locate` it
            gets the part first if the stage is made in parts.
        make: The work.
        parts: What it is made for: ``("reference", "target")`` gives two instances, ``()`` none, ``("",)`` one without a part.
        of_side: Its parts are sides, and it is made on the machine of its side.
        reads_also: Returns what else an instance reads in some recipes, by config and part.
        repeats: It is made again in the second pass, and then reads what it has made in the first too.
        without_records: It is made too where a side has a log and no dump, so that nothing but curves can be compared.
        version: Raised when the same declaration gives other artifacts, of a stage with `locate`. Of all other stages the key
            has the digest of our own code, which says the same.
        locate: Returns plain data about the machine that it runs on. It is the second half of the key: another machine, which
            cannot know it, finds the instance by the first half.
        scope_needs: Those of its needs whose content belongs to the declaration: the region of a second pass.
        declare_scope: Returns the part of their content that the result depends on.
        reads_left: Files and folders that a run has left beside its records, in the dumps that it needs. They belong to the
            declaration, by the checksums in the store: the seal of a dump does not cover them.
        resumes: It continues with what an earlier attempt left when it was killed.
    """

    name: str
    place: int
    reads: tuple[str, ...]
    declare: Callable[..., Mapping[str, Any]]
    make: Callable[..., StageResult]
    parts: Callable[[RunConfig], Sequence[str]] = _make_once
    of_side: bool = False
    reads_also: Callable[[RunConfig, str], tuple[str, ...]] = lambda *_: ()
    repeats: bool = False
    without_records: bool = False
    version: int = 1
    locate: Callable[..., Mapping[str, Any]] | None = None
    scope_needs: tuple[str, ...] = ()
    declare_scope: Callable[[Mapping[str, Path]], Mapping[str, Any]] | None = None
    reads_left: tuple[str, ...] = ()
    resumes: bool = False

    def instance(self, part: str = "", needs: Sequence[str] = (), *, second_pass: bool = False) -> Instance:
        """Return one of its instances: of a part, with what it needs; in the second pass it has another name."""

        def bind(function: Callable[..., Any]) -> Callable[..., Any]:
            """Return the function for this part."""
            return functools.partial(function, part) if part else function

        name, mark, number = self.name.partition("@")
        of_part = f"{name}.{part}" if part else name
        return Instance(
            name=f"{of_part}{mark}{number}{MARK if second_pass else ''}",
            needs=tuple(needs),
            declare=bind(self.declare),
            make=bind(self.make),
            version=self.version,
            locate=self.locate and bind(self.locate),
            side=part if self.of_side else "",
            scope_needs=self.scope_needs,
            declare_scope=self.declare_scope,
            reads_left=self.reads_left,
            resumes=self.resumes,
        )


def is_chosen(config: RunConfig, name: str) -> bool:
    """Tell whether a recipe's ``stages`` leave room for a stage that others can do without: they name it, or nothing."""
    return not config.stages or kind_of(name) in config.stages


def tries_whatifs(config: RunConfig) -> bool:
    """Tell whether a run tries what-ifs: some are asked for, and the target runs here."""
    return bool(config.whatif) and is_chosen(config, "whatif") and "target" in config.sides and not config.target.dump

"""What the dumps of a plan will take on disk, before anything runs.

Told from earlier dumps of the same workload, or from a rehearsal: a run of it without values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent.contract import REHEARSAL_FILE
from precflow.config.schema import Bytes
from precflow.config.units import written
from precflow.dumps.estimate import estimate_calls, estimate_dump
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call
from precflow.dumps.requests import describe_side, dump_request
from precflow.errors import PrecflowError
from precflow.run.next_command import command_for
from precflow.run.steps import Place, Step, own_code
from precflow.run.store import Sealed
from precflow.stages import region
from precflow.stages.artifacts import read_plain
from precflow.stages.asking import ask
from precflow.stages.dump import contents, open_dump, whereabouts
from precflow.stages.job import Job

# A rehearsal: the workload run once without values, so that a plan tells the size of a dump that was never made.
#
# It takes the seconds that importing and building the model takes, so it is only made where it is asked for, and kept in the
# store by what it depends on: the next plan has it at once.

NAME = "rehearsal"
_DIGITS = 10


@dataclass(frozen=True)
class Rehearsal:
    """What a run without values says.

    Attributes:
        calls: Of one step, all modules and operators; each tensor has a content of its own.
        dtype: Floating point type that it ran in.
        problem: Why there are no calls; ``""`` where there are.
    """

    calls: tuple[Call, ...]
    dtype: str
    problem: str = ""


def rehearsal(side: str, job: Job, where: Place, *, make: bool) -> Rehearsal | None:
    """Return the rehearsal of a side's workload: the one in the store, else one that is made now.

    What cannot be made has its ``problem``; where it is the workload's own, that is kept too.

    Args:
        side: Which interpreter and dtype it runs in.
        job: The recipe.
        where: Its store.
        make: Make one where the store has none; otherwise ``None`` is returned then.
    """
    if not make and not where.store.named(NAME):
        return None
    try:
        wanted = _declared(side, job)
        key = keys.digest([NAME, wanted, own_code(of_agent=True)])[:_DIGITS]
        sealed = where.store.find(NAME, key) or (_make(side, job, where, key, wanted) if make else None)
        return None if sealed is None else _read(sealed.folder)
    except PrecflowError as error:
        return Rehearsal((), "", error.message)


def _declared(side: str, job: Job) -> dict[str, Any]:
    """Return what the calls of a step depend on; detail, scope and rules are looked at afterwards."""
    plain = describe_side(job.config, side)
    return {
        "workload": contents(plain["workload"]),
        "level": plain["capture"]["level"],
        "phase": plain["capture"]["phase"],
        "dropout": plain["determinism"]["dropout"],
        **whereabouts(side, job),
    }


def _make(side: str, job: Job, where: Place, key: str, wanted: Mapping[str, Any]) -> Sealed:
    with where.store.making(NAME, key) as attempt:
        folder = attempt.folder
        request = dump_request(
            job.config, side, folder, ci=job.ci, declared_key=key, trusted=job.trusted, import_paths=job.import_paths
        )
        ask(job, side, {**request, "action": "rehearse"}, folder)
        note = read_plain(folder / REHEARSAL_FILE)["problem"] or "ran without values"
        return where.store.seal(attempt, {"name": NAME, "key": key, "declared": wanted, "needs": {}, "note": note})


def _read(folder: Path) -> Rehearsal:
    """Return what was written.

    Raises:
        PrecflowError: It cannot be read.
    """
    plain = read_plain(folder / REHEARSAL_FILE)
    if plain["problem"]:
        return Rehearsal((), plain["dtype"], plain["problem"])
    return Rehearsal(tuple(Dump.open(folder, allow_unsealed=True).calls()), plain["dtype"])


_SIDES = ("reference", "target")


@dataclass(frozen=True)
class Sizes:
    """What is known of the dumps that would be made.

    Attributes:
        bytes: Instance name -> bytes, about.
        rehearsed: Names of those that a run without values tells: tensors of equal content count there one by one.
        problem: Why such a run told nothing; ``""`` where it was not needed, or not asked for.
    """

    bytes: Mapping[str, int]
    rehearsed: tuple[str, ...] = ()
    problem: str = ""


def sizes_of(steps: Sequence[Step], job: Job, where: Place, done: Mapping[str, Sealed], *, rehearse: bool = False) -> Sizes:
    """Return the sizes that can be told.

    Args:
        steps: The plan.
        job: The recipe.
        where: Its store.
        done: Sealed instances by name.
        rehearse: Run the workload without values where no dump tells, which takes seconds; one that was kept counts anyway.
    """
    scope = region.read_scope(done[region.NAME].folder) if region.NAME in done else None
    found: dict[str, int] = {}
    rehearsed, problem = [], ""
    for step in _to_make(steps):
        stage = step.stage
        told = (scope.bytes.get(stage.side) if scope else None) if stage.told_by else _told(stage.side, job, where)
        if told is None and not stage.told_by and not problem:
            told, problem = _rehearsed(stage.side, job, where, make=rehearse)
            rehearsed += [] if told is None else [stage.name]
        if told is not None:
            found[stage.name] = told
    return Sizes(found, tuple(rehearsed), problem)


def about_sizes(steps: Sequence[Step], sizes: Sizes, job: Job, where: Place) -> Iterator[str]:
    """Yield what a reader should know: which sizes are not estimated, why, and what would tell; which are beyond the budget."""
    budget = job.config.capture.budget
    bound = written(Bytes, budget)
    first = [step.stage for step in _to_make(steps) if not step.stage.told_by]
    unknown = [stage.side for stage in first if stage.name not in sizes.bytes]
    if unknown:
        yield f"not estimated: what the dump of the {' and the '.join(unknown)} takes on disk, because {_why(job, where)}"
        if sizes.problem:
            yield f"   and the workload does not run without values: {sizes.problem}"
        yield f"   it stops at {bound} (capture.budget)" if budget else "   capture.budget would bound it"
        yield f"   a dump of content ids alone tells, in one run and little space:  {_telling(job, where, unknown[0])}"
        if not budget and not sizes.problem:
            yield "   a run without values tells too, in seconds: the same command with --sizes"
    if sizes.rehearsed:
        sides = " and the ".join(name.partition(".")[2] for name in sizes.rehearsed)
        yield f"the size of the dump of the {sides} is told by a run without values; tensors of equal content take less"
    for stage in first:
        if budget and sizes.bytes.get(stage.name, 0) > budget:
            needed = f"about {sizes.bytes[stage.name] / 1e6:.0f} MB"
            yield f"the dump of the {stage.side} would take {needed}, and stop at {bound} (capture.budget)"


def _why(job: Job, where: Place) -> str:
    """Say why no dump tells the size."""
    workload = contents(describe_side(job.config, _SIDES[0])["workload"])
    dumps = [sealed for side in _SIDES for sealed in where.store.named(f"dump.{side}")]
    if not any(sealed.declared.get("workload") == workload for sealed in dumps):
        return f"{where.store.root} has no dump of this workload"
    return "the dumps of this workload lack some of the levels, phases or modules that are asked for"


def _telling(job: Job, where: Place, side: str) -> str:
    """Return the command that makes a dump from which the next plan tells the size, in whatever detail."""
    return f"{command_for(job, where, side)} capture.detail=digest capture.rules=[] stages=[environment,dump]"


def _to_make(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.stage.kind == "dump" and step.state == "run" and step.stage.side]


def _told(side: str, job: Job, where: Place) -> int | None:
    """Return what an earlier dump of the same workload says about this side; its own come first, the newest of them."""
    wanted = describe_side(job.config, side)
    workload = contents(wanted["workload"])
    for other in sorted(_SIDES, key=lambda one: one != side):
        for sealed in where.store.named(f"dump.{other}"):
            if sealed.declared.get("workload") != workload:
                continue
            try:
                told = estimate_dump(open_dump(sealed.folder), wanted["capture"], wanted["dtype"])
            except PrecflowError:
                continue
            if told is not None:
                return told
    return None


def _rehearsed(side: str, job: Job, where: Place, *, make: bool) -> tuple[int | None, str]:
    """Return what a run without values says about this side, and why it says nothing."""
    found = rehearsal(side, job, where, make=make)
    if found is None or found.problem:
        return None, "" if found is None else found.problem
    wanted = describe_side(job.config, side)
    return estimate_calls(found.calls, wanted["capture"], wanted["dtype"], ran_in=found.dtype), ""

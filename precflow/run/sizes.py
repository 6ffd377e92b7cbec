"""Estimates the disk space of a plan's dumps before anything runs.

The estimate comes from an earlier dump of the same workload. If there is none, it comes from a rehearsal: the workload runs one
step without values (shapes and element types only). That takes the seconds of importing and building the model, so it is done
only on demand, and its result is kept in the store for the next plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow import keys
from precflow.agent.contract import REHEARSAL_FILE
from precflow.config.schema import SIDES, Bytes
from precflow.config.units import format_value
from precflow.dumps.estimate import estimate_calls, estimate_dump
from precflow.dumps.formats import read_dump
from precflow.dumps.records import Call
from precflow.dumps.requests import describe_side, dump_request
from precflow.errors import PrecflowError
from precflow.run.steps import RunFolder, Step, digest_own_code
from precflow.run.store import Sealed
from precflow.stages.artifacts import read_plain
from precflow.stages.commands import command_for_side
from precflow.stages.dump import declare_workload, locate, open_dump
from precflow.stages.job import Job, ask_agent
from precflow.stages.second_pass import region

REHEARSAL = "rehearsal"  # its name in the store
_KEY_DIGITS = 10


@dataclass(frozen=True)
class Sizes:
    """The estimated sizes of the dumps that would be made.

    Attributes:
        bytes: Instance name -> estimated bytes. A dump whose size is unknown has no entry.
        rehearsed: Names whose size comes from a rehearsal. It is an upper estimate: a dump stores equal tensors once, and a
            rehearsal, without values, counts each of them.
        problem: Why the rehearsal failed; ``""`` if it did not, or was not made.
    """

    bytes: Mapping[str, int]
    rehearsed: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Rehearsal:
    """The calls of one step, run without values.

    Attributes:
        calls: All calls of modules and operators; no two tensors count as equal.
        dtype: Floating point type that it ran in.
        problem: Why there are no calls; ``""`` if there are.
    """

    calls: tuple[Call, ...]
    dtype: str
    problem: str = ""


def estimate_sizes(
    steps: Sequence[Step], job: Job, where: RunFolder, done: Mapping[str, Sealed], *, rehearse: bool = False
) -> Sizes:
    """Return the sizes that can be estimated.

    Args:
        steps: The plan.
        job: The recipe.
        where: Its store.
        done: Sealed instances by name.
        rehearse: Make a rehearsal if no dump gives the size; one that is in the store already is used in any case.
    """
    scope = region.read_scope(done[region.NAME].folder) if region.NAME in done else None
    sizes: dict[str, int] = {}
    rehearsed, problem = [], ""
    for step in _select_dumps(steps):
        stage = step.stage
        if stage.scope_needs:  # a second pass: its size was estimated when its calls were chosen
            size = scope.bytes.get(stage.side) if scope else None
        else:
            size = _estimate_from_dumps(stage.side, job, where)
            if size is None and not problem:  # a workload that failed once without values is not tried for the other side
                size, problem = _estimate_from_rehearsal(stage.side, job, where, make=rehearse)
                rehearsed += [] if size is None else [stage.name]
        if size is not None:
            sizes[stage.name] = size
    return Sizes(sizes, tuple(rehearsed), problem)


def describe_sizes(steps: Sequence[Step], sizes: Sizes, job: Job, where: RunFolder) -> Iterator[str]:
    """Yield notes for the plan: which sizes are unknown, why, and how to learn them; which are larger than the budget."""
    budget = job.config.capture.budget
    bound = format_value(Bytes, budget)
    first = [step.stage for step in _select_dumps(steps) if not step.stage.scope_needs]
    unknown = [stage.side for stage in first if stage.name not in sizes.bytes]
    if unknown:
        reason = _explain_unknown(job, where)
        yield f"not estimated: what the dump of the {' and the '.join(unknown)} takes on disk, because {reason}"
        if sizes.problem:
            yield f"   and the workload does not run without values: {sizes.problem}"
        yield f"   it stops at {bound} (capture.budget)" if budget else "   capture.budget would bound it"
        command = f"{command_for_side(job, unknown[0])} capture.detail=digest capture.rules=[] stages=[environment,dump]"
        yield f"   a dump of content ids alone tells, in one run and little space:  {command}"
        if not budget and not sizes.problem:
            yield "   a run without values tells too, in seconds: the same command with --sizes"
    if sizes.rehearsed:
        sides = " and the ".join(name.partition(".")[2] for name in sizes.rehearsed)
        yield f"the size of the dump of the {sides} comes from a run without values; tensors of equal content take less"
    for stage in first:
        if budget and sizes.bytes.get(stage.name, 0) > budget:
            needed = f"about {sizes.bytes[stage.name] / 1e6:.0f} MB"
            yield f"the dump of the {stage.side} would take {needed}, and stop at {bound} (capture.budget)"


def _select_dumps(steps: Sequence[Step]) -> list[Step]:
    # The stage of a dump that the user gives belongs to no side: it reads the dump and makes none.
    return [step for step in steps if step.stage.kind == "dump" and step.state == "run" and step.stage.side]


def _explain_unknown(job: Job, where: RunFolder) -> str:
    """Return why no dump in the store gives the size."""
    workload = declare_workload(describe_side(job.config, SIDES[0])["workload"])
    dumps = [sealed for side in SIDES for sealed in where.store.list_sealed(f"dump.{side}")]
    if not any(sealed.declared.get("workload") == workload for sealed in dumps):
        return f"{where.store.root} has no dump of this workload"
    return "the dumps of this workload lack some of the levels, phases or modules that are asked for"


def _estimate_from_dumps(side: str, job: Job, where: RunFolder) -> int | None:
    """Return what an earlier dump of the same workload says about this side: its own dumps first, the newest of them."""
    wanted = describe_side(job.config, side)
    workload = declare_workload(wanted["workload"])
    # False sorts before True, so the side's own dumps come first. Both sides run the same workload.
    for other in sorted(SIDES, key=lambda name: name != side):
        for sealed in where.store.list_sealed(f"dump.{other}"):
            if sealed.declared.get("workload") != workload:
                continue
            try:
                size = estimate_dump(open_dump(sealed.folder), wanted["capture"], wanted["dtype"])
            except PrecflowError:  # this dump is damaged; an older one may be whole
                continue
            if size is not None:
                return size
    return None


def _estimate_from_rehearsal(side: str, job: Job, where: RunFolder, *, make: bool) -> tuple[int | None, str]:
    """Return the size that a rehearsal gives (``None`` without one), and why it failed (``""`` if it did not)."""
    rehearsal = rehearse(side, job, where, make=make)
    if rehearsal is None or rehearsal.problem:
        return None, "" if rehearsal is None else rehearsal.problem
    wanted = describe_side(job.config, side)
    return estimate_calls(rehearsal.calls, wanted["capture"], wanted["dtype"], ran_in=rehearsal.dtype), ""


def rehearse(side: str, job: Job, where: RunFolder, *, make: bool) -> Rehearsal | None:
    """Return the rehearsal of a side's workload: from the store, else made now.

    If it cannot be made, its ``problem`` says why. A problem of the workload itself is kept in the store, so that the next plan
    does not run into it again.

    Args:
        side: Which interpreter and dtype it runs in.
        job: The recipe.
        where: Its store.
        make: Make one if the store has none; otherwise ``None`` is returned then.
    """
    if job.config.workload.script:
        return Rehearsal((), "", "a script is never run without values") if make else None
    if not make and not where.store.list_sealed(REHEARSAL):
        return None
    try:
        settings = describe_side(job.config, side)
        # Detail, scope and rules of the capture are left out: they are applied to the calls afterwards.
        wanted = {
            "workload": declare_workload(settings["workload"]),
            "level": settings["capture"]["level"],
            "phase": settings["capture"]["phase"],
            "dropout": settings["determinism"]["dropout"],
            **locate(side, job),
        }
        key = keys.digest([REHEARSAL, wanted, digest_own_code(of_agent=True)])[:_KEY_DIGITS]
        sealed = where.store.find(REHEARSAL, key) or (_make_rehearsal(side, job, where, key, wanted) if make else None)
        if sealed is None:
            return None
        outcome = read_plain(sealed.folder / REHEARSAL_FILE)
        calls = () if outcome["problem"] else tuple(read_dump(sealed.folder, allow_unsealed=True).calls())
        return Rehearsal(calls, outcome["dtype"], outcome["problem"])
    except PrecflowError as error:
        return Rehearsal((), "", error.message)


def _make_rehearsal(side: str, job: Job, where: RunFolder, key: str, wanted: Mapping[str, Any]) -> Sealed:
    with where.store.making(REHEARSAL, key) as attempt:
        folder = attempt.folder
        request = dump_request(job.config, side, folder, ci=job.ci, declared_key=key, code=job.user_code)
        ask_agent(job, side, {**request, "action": "rehearse"}, folder)
        note = read_plain(folder / REHEARSAL_FILE)["problem"] or "ran without values"
        return where.store.seal(attempt, {"name": REHEARSAL, "key": key, "declared": wanted, "needs": {}, "note": note})

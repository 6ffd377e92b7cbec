"""What the dumps of a plan will take on disk, before anything runs: told from earlier dumps of the same workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from precflow.config.schema import Bytes
from precflow.config.units import written
from precflow.dumps.estimate import estimate
from precflow.dumps.requests import declared
from precflow.errors import PrecflowError
from precflow.run.hand_over import command_for
from precflow.run.steps import Place, Step
from precflow.run.store import Sealed
from precflow.stages import region
from precflow.stages.dump import contents, open_dump
from precflow.stages.job import Job

_SIDES = ("reference", "target")


def sizes_of(steps: Sequence[Step], job: Job, where: Place, done: Mapping[str, Sealed]) -> dict[str, int]:
    """Return instance name -> bytes, about, of the dumps that would be made and whose size can be told."""
    scope = region.read_scope(done[region.NAME].folder) if region.NAME in done else None
    found: dict[str, int] = {}
    for step in _to_make(steps):
        stage = step.stage
        told = (scope.bytes.get(stage.side) if scope else None) if stage.told_by else _told(stage.side, job, where)
        if told is not None:
            found[stage.name] = told
    return found


def about_sizes(steps: Sequence[Step], sizes: Mapping[str, int], job: Job, where: Place) -> Iterator[str]:
    """Yield what a reader should know: which sizes are not estimated, why, and what would tell; which are beyond the budget."""
    budget = job.config.capture.budget
    bound = written(Bytes, budget)
    first = [step.stage for step in _to_make(steps) if not step.stage.told_by]
    unknown = [stage.side for stage in first if stage.name not in sizes]
    if unknown:
        yield f"not estimated: what the dump of the {' and the '.join(unknown)} takes on disk, because {_why(job, where)}"
        yield f"   it stops at {bound} (capture.budget)" if budget else "   capture.budget would bound it"
        yield f"   a dump of content ids alone tells, in one run and little space:  {_telling(job, where, unknown[0])}"
    for stage in first:
        if budget and sizes.get(stage.name, 0) > budget:
            needed = f"about {sizes[stage.name] / 1e6:.0f} MB"
            yield f"the dump of the {stage.side} would take {needed}, and stop at {bound} (capture.budget)"


def _why(job: Job, where: Place) -> str:
    """Say why no dump tells the size."""
    workload = contents(declared(job.config, _SIDES[0])["workload"])
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
    wanted = declared(job.config, side)
    workload = contents(wanted["workload"])
    for other in sorted(_SIDES, key=lambda one: one != side):
        for sealed in where.store.named(f"dump.{other}"):
            if sealed.declared.get("workload") != workload:
                continue
            try:
                told = estimate(open_dump(sealed.folder), wanted["capture"], wanted["dtype"])
            except PrecflowError:
                continue
            if told is not None:
                return told
    return None

"""Stage ``as_is``: each side once more as it is, without what the recipe changes in what runs.

A recipe that takes dropout out of a model, moves draws or chooses algorithms may take the fault out with it: both sides agree
then, and the training does not. So the workload runs once more up to its last recorded step, with nothing changed and nothing
recorded, and its losses and gradients are kept. They are small and travel to the machine of the other side with the dump.

Devices of two kinds draw other numbers from one seed. A side that draws on its device is therefore run a second time with its
draws on the CPU, unless both sides are of one kind; and with ``determinism.repeat`` once more for its own noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent.contract import CHECKED, RECORDED
from precflow.config.schema import SIDES, RunConfig
from precflow.dumps.requests import as_is_request, describe_as_is
from precflow.environment.as_is import AGAIN, AS_IT_IS, MOVED, NotedRun, SideRuns, is_whole, read_run, read_side
from precflow.stages import dump
from precflow.stages.job import Job, Stage, StageResult, ask_agent, is_chosen
from precflow.stages.noise import files_put_back

KIND = "as_is"


def name_of(side: str) -> str:
    """Return the name of the instance of a side."""
    return f"{KIND}.{side}"


def is_planned(config: RunConfig) -> bool:
    """Tell whether both sides are run as they are: the recipe asks for it, and neither side is given."""
    return not explain_left_out(config)


def explain_left_out(config: RunConfig) -> str:
    """Return why the sides are not run as they are, in words; ``""`` if they are."""
    if config.determinism.as_is != CHECKED or not is_chosen(config, KIND):
        return "determinism.as_is=checked does that"
    given = [side for side in SIDES if getattr(config, side).dump or getattr(config, side).log]
    if given:
        return f"the {given[0]} is given"
    if config.determinism.data == RECORDED:
        return "the target reads other batches by itself"
    if not (config.workload.script or config.workload.optimizer):
        return "it has no optimizer, whose steps are followed"
    return ""


def read_sides(needs: Mapping[str, Path], config: RunConfig) -> dict[str, SideRuns]:
    """Return side -> its runs, for the sides whose instance is among the folders."""
    return {side: read_side(needs[name_of(side)], getattr(config, side).ranks) for side in SIDES if name_of(side) in needs}


def _declare(side: str, job: Job) -> Mapping[str, Any]:
    plain = describe_as_is(job.config, side)
    declared = {**plain, "workload": dump.declare_workload(plain["workload"])}
    return {**declared, "repeat": job.config.determinism.repeat, "one kind": _are_of_one_kind(job.config)}


def _are_of_one_kind(config: RunConfig) -> bool:
    """Tell whether both sides surely run on one kind of device, which draws the same numbers."""
    return len(config.reference.device) == 1 and tuple(config.reference.device) == tuple(config.target.device)


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    del needs
    with files_put_back(job.config.workload.files, folder / "before"):
        runs = [_run(side, job, folder / AS_IT_IS, moved=False)]
        moves = any(run.has_drawn for run in runs[0]) and not _are_of_one_kind(job.config)
        if moves and not _find_problem(runs[0]):
            runs.append(_run(side, job, folder / MOVED, moved=True))
        if job.config.determinism.repeat and not _find_problem(runs[-1]):
            runs.append(_run(side, job, folder / AGAIN, moved=moves))
    problem = next(filter(None, map(_find_problem, runs)), "")
    steps = len({step.step for run in runs[0] for step in run.steps})
    words = [f"{steps} step{'s' * (steps != 1)}", *(["once more with draws on the CPU"] if moves else [])]
    return StageResult(note=problem or ", ".join(words))


def _find_problem(run: tuple[NotedRun, ...]) -> str:
    return next((one.problem for one in run if one.problem), "")


def _run(side: str, job: Job, folder: Path, *, moved: bool) -> tuple[NotedRun, ...]:
    """Return one run of a side; one that an earlier attempt has finished is not made again."""
    ranks = job.side(side).ranks
    if not is_whole(folder, ranks):
        folder.mkdir(exist_ok=True)
        request = as_is_request(
            job.config,
            side,
            folder,
            moved=moved,
            ci=job.ci,
            declared_key=keys.digest(_declare(side, job)),
            code=job.user_code,
        )
        ask_agent(job, side, request, folder)
    return read_run(folder, ranks)


STAGE = Stage(
    name="as_is",
    place=50,
    reads=("environment",),
    declare=_declare,
    make=_make,
    parts=lambda config: SIDES if is_planned(config) else (),
    of_side=True,
    locate=dump.locate,
    resumes=True,
)

"""Stage ``chain``: runs the parts of a model on the reference's inputs, and tells which of them are to blame.

The target runs its workload once more, and each part that the recipe names is given what the reference's part was given. The
reference does so too, in the target's element type and with disturbances as small as rounding: a part's limit is made of what
rounding alone does to this part, without anything that came before. Both runs are made here, so that a recipe whose sides are
two machines is told which parts are wrong by its records alone.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precflow.agent.contract import FILLS, LEFT_OUT, MODULE, NOISE_FILE, NOISES, ROOT_MODULE, UNCHECKED, module_text
from precflow.agent.selection import literal_pattern
from precflow.comparison.compare import compare
from precflow.comparison.measure import Measure
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.config.schema import RunConfig
from precflow.config.sections.standards import are_measured
from precflow.diagnosis.chain import Part, describe_parts, judge_parts, write_inputs
from precflow.dumps.formats import read_dump
from precflow.dumps.protocol import Dump
from precflow.dumps.requests import UserCode, dump_request, noise_request
from precflow.judgement.carried import find_carried
from precflow.judgement.floors import Floor
from precflow.judgement.judge import Circumstances, Floors, judge
from precflow.judgement.verdicts import Judged
from precflow.stages import task_metrics
from precflow.stages.artifacts import read_lines, read_plain, write_lines
from precflow.stages.compare import choose_executor, read_measures
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult, ask_agent, is_chosen
from precflow.stages.judge import find_dtypes, read_judged
from precflow.stages.noise import reduce_to_floors
from precflow.stages.second_pass.passes import latest

NAME = "chain"
PARTS_FILE = "parts.jsonl"
FLOORS_FILE = "floors.jsonl"
INPUTS_FILE = "inputs.json"


def is_planned(config: RunConfig) -> bool:
    """Tell whether a recipe names parts, and both sides run them here."""
    runs_here = all(not (side.dump or side.log) for side in (config.reference, config.target)) and len(config.sides) > 1
    return bool(config.workload.parts) and not config.workload.script and runs_here and is_chosen(config, NAME)


def read_parts(needs: Mapping[str, Path]) -> list[Part]:
    """Return what was found about each part; nothing without the stage."""
    return read_lines(needs[NAME] / PARTS_FILE, Part) if NAME in needs else []


def _declare(job: Job) -> Mapping[str, Any]:
    return {"parts": list(job.config.workload.parts)}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    parts = job.config.workload.parts
    measures = read_measures(latest(needs, "compare"))
    judged = read_judged(latest(needs, "judge"))
    free = list(zip(measures, judged, strict=True))
    path = folder.resolve() / INPUTS_FILE
    why = "no tensor was compared"
    forced: list[tuple[Measure, Judged]] = []
    if measures:
        reference = open_dump(needs["dump.reference"])
        why = write_inputs(path, reference, parts)
        if not why:
            why, forced = _run_forced(job, folder, reference, path)
    path.unlink(missing_ok=True)  # it has paths of this machine
    found = judge_parts(parts, free, forced, why)
    write_lines(folder / PARTS_FILE, found)
    return StageResult(note=describe_parts(found))


def _run_forced(job: Job, folder: Path, reference: Dump, inputs: Path) -> tuple[str, list[tuple[Measure, Judged]]]:
    """Run both sides with the reference's inputs; return why there are no limits, or the target's records with statuses."""
    floors: list[Floor] = []
    if are_measured(job.config.tolerance.standards):
        work = _make_folder(folder / "noise")
        request = noise_request(job.config, work, dtype=job.config.target.dtype, ci=job.ci, declared_key="", code=job.user_code)
        ask_agent(job, "reference", of_parts(request, job.config, inputs), work)
        missing = str(read_plain(work / NOISE_FILE)["problem"])
        if missing:
            shutil.rmtree(work)
            return f"the disturbed runs of the reference failed ({missing})", []
        floors = reduce_to_floors(job, reference, work, NOISES)
        shutil.rmtree(work)
    write_lines(folder / FLOORS_FILE, floors)
    work = _make_folder(folder / "target")
    code: UserCode = job.user_code
    request = dump_request(job.config, "target", work, ci=job.ci, declared_key="", code=code)
    ask_agent(job, "target", of_parts(request, job.config, inputs), work)
    forced = judge_forced(job, reference, read_dump(work), floors)
    shutil.rmtree(work)
    return "", forced


def judge_forced(job: Job, reference: Dump, target: Dump, floors: Iterable[Floor]) -> list[tuple[Measure, Judged]]:
    """Return the outputs of the parts with their statuses, of a target that was given the reference's inputs.

    Args:
        job: The run.
        reference: Dump of the reference.
        target: Dump of such a run of the target.
        floors: What rounding alone does to each part at these inputs; none where no standard needs them.
    """
    executor = choose_executor(job, DeclaredMetrics({}, job.trusted, job.import_paths))
    every = compare(reference, target, executor=executor, constants=(*FILLS, *job.config.tolerance.fills))
    measures = [measure for measure in every if measure.module in job.config.workload.parts and not measure.operator]
    statuses, _ = judge(
        measures,
        job.config,
        dtypes=find_dtypes(reference, target, measures),
        known=Circumstances(datetime.datetime.now(tz=datetime.timezone.utc).date()),
        folders=job.team.get("standard", ()),
        floors=Floors({floor.record: floor for floor in floors}, "", find_carried(reference.calls())),
    )
    return list(zip(measures, statuses, strict=True))


def _make_folder(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def of_parts(request: Mapping[str, Any], config: RunConfig, inputs: Path | None) -> dict[str, Any]:
    """Return a request that records nothing but the parts, and gives them the reference's inputs.

    Without a file of inputs it records what the model returns and what task metrics read as well, and gives nothing.
    """
    read, operators = ([], False) if inputs else task_metrics.list_read(config)
    modules = dict.fromkeys([*config.workload.parts, *([] if inputs else [module_text(ROOT_MODULE)]), *read])
    scope = [literal_pattern(module) for module in modules]
    level = request["capture"]["level"] if operators else [MODULE]
    capture = {**request["capture"], "level": level, "scope": scope, "rules": [], "weights": LEFT_OUT, "budget": 0}
    determinism = {**request["determinism"], "repeat": False, "observer": UNCHECKED}
    given = {"inputs": str(inputs)} if inputs else {}
    return {**request, "capture": capture, "determinism": determinism, **given}


STAGE = Stage(
    name="chain",
    place=225,
    reads=("environment", "dump", "noise", "compare", "judge", "introduced"),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if is_planned(config) else (),
)

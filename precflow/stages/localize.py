"""Stage ``localize``: finds where in the data-flow graph the two sides begin to differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.diagnosis.findings import Region
from precflow.diagnosis.localize import localize
from precflow.judgement.floors import find_floors_of_inputs
from precflow.judgement.inputs import make_input_judge
from precflow.stages import noise
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.compare import read_measures
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.judge import find_dtypes, read_judged
from precflow.stages.second_pass.passes import latest, newest, open_both, second

REGION_FILE = "region.json"


def read_region(folder: Path) -> Region:
    """Return the region of divergence."""
    return read_value(folder / REGION_FILE, Region)


def _declare(job: Job) -> Mapping[str, Any]:
    del job
    return {}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    reference, target = open_both(needs, job)
    measures = read_measures(latest(needs, "compare"))
    dtypes = find_dtypes(reference, target, measures)
    floors = noise.read_floors(needs[noise.NAME]) if noise.NAME in needs else {}
    inputs = make_input_judge(
        reference,
        target,
        job.config.tolerance,
        reference_dtype=dtypes[0],
        target_dtype=dtypes[1],
        folders=job.team.get("standard", ()),
        find_floor=find_floors_of_inputs(reference.calls(), floors),
    )
    region = localize(reference, target, measures, read_judged(latest(needs, "judge")), inputs)
    write_value(folder / REGION_FILE, region)
    return StageResult(note=f"starts at {region.start}" if region.start else "nothing parts")


STAGE = Stage(name="localize", needs=("dump.reference", "dump.target", "compare", "judge"), declare=_declare, make=_make)
SECOND = Stage(
    name=second(STAGE.name),
    needs=newest(STAGE.needs, second_pass=True),
    declare=_declare,
    make=_make,
)

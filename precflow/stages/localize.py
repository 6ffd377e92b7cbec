"""Stage ``localize``: finds where in the data-flow graph the two sides begin to differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.diagnosis.dropped_steps import blame_first_broken, find_first_broken
from precflow.diagnosis.findings import Region
from precflow.diagnosis.localize import localize
from precflow.diagnosis.training.gradients import blame_left, find_left_gradients
from precflow.diagnosis.training.updates import blame_still, find_still_parameters
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.compare import read_measures
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.judge import find_dtypes, judge_inputs, read_judged
from precflow.stages.second_pass.passes import latest, open_both

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
    inputs = judge_inputs(job, needs, reference, target, find_dtypes(reference, target, measures))
    region = localize(reference, target, measures, read_judged(latest(needs, "judge")), inputs)
    if measures:  # none was read where the sides were given other data
        region = blame_still(region, find_still_parameters(reference, target, measures), reference.calls())
        region = blame_left(region, find_left_gradients(reference, target), reference.calls())
        region = blame_first_broken(region, find_first_broken(reference, target))
    write_value(folder / REGION_FILE, region)
    return StageResult(note=f"starts at {region.start}" if region.start else "no difference to locate")


STAGE = Stage(
    name="localize", place=90, reads=("dump", "noise", "compare", "judge"), declare=_declare, make=_make, repeats=True
)

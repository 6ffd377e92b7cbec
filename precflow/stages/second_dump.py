"""Stages ``dump.SIDE@2``: a side runs once more, and the tensors of the region are recorded."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from precflow import keys
from precflow.stages import dump, region
from precflow.stages.job import Job, Made, Stage
from precflow.stages.passes import second


def stage(side: str) -> Stage:
    """Return the stage that records one side's second pass."""
    return Stage(
        name=second(f"dump.{side}"),
        needs=(f"environment.{side}", region.NAME),
        declare=functools.partial(dump.declare, side),
        make=functools.partial(_make, side),
        place=functools.partial(dump.whereabouts, side),
        side=side,
        told_by=(region.NAME,),
        told=region.told,
        resumes=True,
    )


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    declared_key = keys.digest([dump.declare(side, job), region.told(needs)])
    return dump.record(side, job, folder, declared_key, region.read_scope(needs[region.NAME]).rules)

"""Stages ``dump.SIDE@2``: run a side once more and record the tensors of the region."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from precflow import keys
from precflow.stages import dump
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.second_pass import region
from precflow.stages.second_pass.passes import second


def stage(side: str, *, given_choices: bool = False) -> Stage:
    """Return the stage that records one side's second pass; see :func:`precflow.stages.dump.stage`."""
    return Stage(
        name=second(f"dump.{side}"),
        needs=(f"environment.{side}", region.NAME, *(("dump.reference",) if given_choices else ())),
        declare=functools.partial(dump.declare, side),
        make=functools.partial(_make, side),
        locate=functools.partial(dump.locate, side),
        side=side,
        scope_needs=(region.NAME,),
        declare_scope=region.declare_scope,
        resumes=True,
    )


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    declared_key = keys.digest([dump.declare(side, job), region.declare_scope(needs)])
    rules = region.read_scope(needs[region.NAME]).rules
    return dump.record(side, job, folder, declared_key, region=rules, reference=needs.get("dump.reference"))

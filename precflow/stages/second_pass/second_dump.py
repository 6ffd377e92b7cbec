"""Stages ``dump.SIDE@2``: run a side once more and record the tensors of the region."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from precflow import keys
from precflow.config.schema import RunConfig
from precflow.dumps.requests import gives_choices
from precflow.stages import dump
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.second_pass import region


def _list_sides(config: RunConfig) -> tuple[str, ...]:
    return ("reference", "target") if region.escalates(config) else ()


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    declared_key = keys.digest([dump.declare(side, job), region.declare_scope(needs)])
    rules = region.read_scope(needs[region.NAME]).rules
    return dump.record(side, job, folder, declared_key, region=rules, reference=needs.get("dump.reference"))


STAGE = Stage(
    name="dump@2",
    place=110,
    reads=("environment", region.NAME),
    declare=dump.declare,
    make=_make,
    parts=_list_sides,
    of_side=True,
    reads_also=lambda config, side: ("dump.reference",) if side == "target" and gives_choices(config) else (),
    locate=dump.locate,
    scope_needs=(region.NAME,),
    declare_scope=region.declare_scope,
    resumes=True,
)

"""Stage ``region``: chooses the calls that a second pass records, and writes them into a file for the machines of the sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.agent.selection import DetailRule
from precflow.config.schema import RunConfig, plain
from precflow.config.vocabulary import ESCALATING
from precflow.diagnosis.second_pass import SecondPass, choose_calls
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult, is_chosen
from precflow.stages.judge import read_judged
from precflow.stages.localize import read_region

NAME = "region"
SCOPE_FILE = "region.json"


def escalates(config: RunConfig) -> bool:
    """Return whether a second pass may follow the first: the recipe escalates, and its ``stages``, if any, have ``region``."""
    return config.capture.detail == ESCALATING and is_chosen(config, NAME)


def read_scope(folder: Path) -> SecondPass:
    """Return the scope of the second pass."""
    return read_value(folder / SCOPE_FILE, SecondPass)


def declare_scope(needs: Mapping[str, Path]) -> Mapping[str, Any]:
    """Return the part of the region that a dump of the second pass depends on: its rules, and the dumps they were made from."""
    scope = read_scope(needs[NAME])
    return {"region": plain(scope.rules), "first": dict(scope.dumps)}


def _declare(job: Job) -> Mapping[str, Any]:
    return {"budget": job.config.capture.budget, "rules": plain(job.config.capture.rules)}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    scope = choose_calls(
        open_dump(needs["dump.reference"]),
        open_dump(needs["dump.target"]),
        judged=read_judged(needs["judge"]),
        region=read_region(needs["localize"]),
        budget=job.config.capture.budget,
        rules=[DetailRule.from_plain(plain(rule)) for rule in job.config.capture.rules],
    )
    write_value(folder / SCOPE_FILE, scope)
    return StageResult(note=scope.why)


STAGE = Stage(
    name="region",
    place=100,
    reads=("dump", "judge", "localize"),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if escalates(config) else (),
)

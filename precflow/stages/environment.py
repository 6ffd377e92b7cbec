"""Stage ``environment``: asks a side for its software and its device, and checks that it has what the recipe requires."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.agent import redaction
from precflow.agent.contract import FACTS_FILE
from precflow.config.schema import SIDES
from precflow.dumps.requests import environment_request
from precflow.environment.requirements import find_missing, refuse_missing
from precflow.sides.interpreter import take_fingerprint
from precflow.stages.artifacts import read_plain
from precflow.stages.job import Job, Stage, StageResult, ask_agent


def _declare(side: str, job: Job) -> Mapping[str, Any]:
    settings = job.side(side)
    return {
        "device": list(settings.device),
        # In CI an emulated device must be asked for by its single name, never chosen because another one is missing.
        "emulated_allowed": len(settings.device) == 1 or not job.ci,
        "variables": redaction.redact(settings.variables),
        "require": {"torch": job.config.environment.require.torch, "python": job.config.environment.require.python},
        "here": take_fingerprint(settings),
    }


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    del needs
    request = environment_request(job.config, side, folder, ci=job.ci)
    ask_agent(job, side, request, folder)
    facts = read_plain(folder / FACTS_FILE)
    refuse_missing(side, find_missing(job.config.environment.require, facts, shutil.disk_usage(folder).free))
    return StageResult(note=describe(facts))


def describe(facts: Mapping[str, Any]) -> str:
    """Return one line about a side: device, torch, Python."""
    device, torch = facts["device"], facts["torch"]
    name = device.get("description") or device["kind"]
    return f"{device['kind']}: {name}, torch {torch['version']}, Python {facts['python']['version']}"


STAGE = Stage(
    name="environment",
    place=10,
    reads=(),
    declare=_declare,
    make=_make,
    parts=lambda config: [side for side in SIDES if not (getattr(config, side).dump or getattr(config, side).log)],
    of_side=True,
    without_records=True,
)

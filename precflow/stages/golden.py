"""Stage ``golden``: the workload once more in higher precision, and how far both sides are from that, record by record.

The run is made on the machine of the target, by its interpreter, on the CPU. It is given the reference's choices (routing,
tokens), so that it computes the same. What is kept are the errors: its tensors are removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.config.schema import RunConfig, plain
from precflow.diagnosis.golden import evaluate_records
from precflow.diagnosis.introduced import Evaluated
from precflow.diagnosis.operator_standards import list_asked
from precflow.dumps.formats import read_dump
from precflow.dumps.requests import golden_request
from precflow.stages import dump, evaluation
from precflow.stages.artifacts import read_lines, read_once, write_lines
from precflow.stages.job import Job, Stage, StageResult, ask_agent, is_chosen
from precflow.stages.second_pass.passes import open_both

NAME = "golden"
ERRORS_FILE = "golden.jsonl"


def is_planned(config: RunConfig) -> bool:
    """Tell whether a recipe asks for a golden run."""
    return bool(config.golden.dtype) and is_chosen(config, NAME)


def read_golden(needs: Mapping[str, Path]) -> list[Evaluated]:
    """Return the errors of both sides against the golden run, by identity text of the record; none without the stage."""
    return read_once(_read, needs[NAME] / ERRORS_FILE) if NAME in needs else []


def _read(path: Path) -> list[Evaluated]:
    return read_lines(path, Evaluated)


def _declare(job: Job) -> Mapping[str, Any]:
    return {
        "golden": plain(job.config.golden),
        "workload": dump.declare_workload(dump.declare("target", job)["workload"]),
        "errors": list_asked(evaluation.load_standards(job)),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    ran = folder / "run"
    shutil.rmtree(ran, ignore_errors=True)
    ran.mkdir()
    request = golden_request(job.config, ran, ci=job.ci, declared_key=keys.digest(_declare(job)), code=job.user_code)
    with dump.hand_over_choices(ran, needs["dump.reference"]) as choices:
        ask_agent(job, "target", {**request, **choices}, ran)
    reference, target = open_both(needs, job)
    asked = list_asked(evaluation.load_standards(job))
    evaluated = [one for _, one in evaluate_records(reference, target, read_dump(ran), asked)]
    write_lines(folder / ERRORS_FILE, evaluated)
    shutil.rmtree(ran)
    if not evaluated:
        return StageResult(note="no record of the golden run has its tensors on both sides: capture.detail=tensors keeps them")
    worse = sum(_is_worse(one) for one in evaluated)
    return StageResult(note=f"{len(evaluated)} records against {job.config.golden.dtype}, the target is further off at {worse}")


def _is_worse(one: Evaluated) -> bool:
    etas = [one.sides[side].eta for side in ("reference", "target")] if one.evaluated else [None, None]
    return etas[0] is not None and etas[1] is not None and etas[1] > etas[0]


STAGE = Stage(
    name="golden",
    place=65,
    reads=("dump",),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if is_planned(config) else (),
)

"""Stage ``machine``: holds a side to the published tables, to known issues and to the state of its machine.

Alone, it is recipe ``environment_check``. With any other recipe it runs where `environment.require` asks for something of the
machine, and then refuses to go on without it. Memory and ports change from hour to hour, so no run takes it from the store.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from precflow.config.schema import MACHINE, SIDES, RunConfig, checks_environment_alone
from precflow.environment.checks import count_problems
from precflow.environment.requirements import needs_machine, refuse_missing
from precflow.report.environment_check import CheckedSide, CheckReport
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.side_check import REQUIRED, Knowledge, SideChecks, ask_machine, check_side

NAME = MACHINE
CHECKS_FILE = "checks.json"


def read_checks(needs: Mapping[str, Path]) -> list[SideChecks]:
    """Return the checks of each side that was checked."""
    names = [f"{NAME}.{side}" for side in SIDES]
    return [read_value(needs[name] / CHECKS_FILE, SideChecks) for name in names if name in needs]


def conclude(checked: Sequence[SideChecks]) -> str:
    """Return the verdict of checks alone: something has to be fixed, something could not be told, or all is right.

    >>> conclude([SideChecks("target", (Row("clock", "nothing to compare it with", unknown=True),))])
    'inconclusive'
    """
    rows = [row for each in checked for row in each.rows]
    if any(row.problem for row in rows):
        return "misaligned"
    return "inconclusive" if not rows or any(row.unknown for row in rows) else "aligned"


def describe(recipe: str, checked: Sequence[SideChecks]) -> CheckReport:
    """Return what is shown of the checks of a recipe."""
    finished = datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    sides = tuple(CheckedSide(each.side, each.rows, each.issues, each.versions) for each in checked)
    return CheckReport(recipe, conclude(checked), finished, sides)


def _declare(side: str, job: Job) -> Mapping[str, Any]:
    return {"side": side, "asked": job.began, "started": job.started}  # no other run has asked at this moment


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    del needs
    checked = check_side(job.config, side, partial(ask_machine, agents=job.agents), Knowledge.load(job.team), folder)
    write_value(folder / CHECKS_FILE, checked)
    if not checks_environment_alone(job.config):
        refuse_missing(side, [row.text for row in checked.rows if row.topic == REQUIRED])
    return StageResult(note=count_problems(checked.rows))


def _list_sides(config: RunConfig) -> tuple[str, ...]:
    """Return the sides that are checked: those that run; if both run in the same way, one is enough to check them alone."""
    if not (NAME in config.stages or needs_machine(config.environment.require)):
        return ()
    sides = tuple(side for side in config.sides if not (getattr(config, side).dump or getattr(config, side).log))
    same = checks_environment_alone(config) and config.reference == config.target and tuple(config.sides) == SIDES
    return ("target",) if same else sides


STAGE = Stage(
    name="machine",
    place=15,
    reads=(),
    declare=_declare,
    make=_make,
    parts=_list_sides,
    of_side=True,
    without_records=True,
)

"""Stage ``operators``: a table of how exact each operator of the target's device is. Only where ``stages`` names it.

The target's agent runs the recorded calls alone, and functions of all 16-bit numbers. What the calls were off by in the run is
known from stage ``introduced``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent.contract import CALLS_FILE, REPLAYED_FILE, UNARY_FILE
from precflow.config.schema import RunConfig
from precflow.diagnosis.evaluation import write_calls
from precflow.diagnosis.operator_table import CalledOperator, OperatorRow, build_rows, lay_beside, summarize
from precflow.dumps.requests import environment_request
from precflow.errors import ConfigError, StoreError
from precflow.sides.launch import REQUEST_FILE
from precflow.stages import introduced
from precflow.stages.artifacts import read_json_lines, read_plain, read_value, write_value
from precflow.stages.job import Job, Stage, StageResult, ask_agent
from precflow.stages.second_pass.passes import open_both

NAME = "operators"
TABLE_FILE = "operators.json"


def is_planned(config: RunConfig) -> bool:
    """Tell whether a run makes the table: ``stages`` names it and what it needs, and the target runs here."""
    return NAME in config.stages and introduced.NAME in config.stages and "target" in config.sides and not config.target.dump


def read_table(needs: Mapping[str, Path]) -> list[OperatorRow]:
    """Return the rows of the table; none without the stage."""
    return read_value(needs[NAME] / TABLE_FILE, list[OperatorRow]) if NAME in needs else []


def _declare(job: Job) -> Mapping[str, Any]:
    earlier = job.config.operators.against
    return {"against": keys.file_digest(Path(earlier).expanduser())} if earlier else {}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    reference, target = open_both(needs, job)
    written = write_calls(folder / CALLS_FILE, reference, target)
    asked = environment_request(job.config, "target", folder, ci=job.ci)
    for action in ("replay", "unary"):
        ask_agent(job, "target", {**asked, "action": action}, folder)
    called = {
        pair.name: CalledOperator(
            pair.reference.name,
            pair.reference.operator or pair.reference.class_name,
            str(pair.reference.phase),
            {record.index: record.dtype for record in pair.target.outputs},
        )
        for pair in written.pairs
    }
    rows = build_rows(
        introduced.read_introduced(needs),
        called,
        read_json_lines(folder / REPLAYED_FILE),
        read_plain(folder / UNARY_FILE)["functions"],
    )
    if job.config.operators.against:
        rows = lay_beside(rows, _read_earlier(Path(job.config.operators.against).expanduser()))
    write_value(folder / TABLE_FILE, rows)
    for left in (CALLS_FILE, REQUEST_FILE, REPLAYED_FILE, UNARY_FILE):
        (folder / left).unlink(missing_ok=True)  # the first two have paths of this machine; the table has the others
    rest = f"; {written.left_out} calls left out, they are too large" if written.left_out else ""
    rest += f"; {written.not_whole} calls were not kept whole" if written.not_whole else ""
    return StageResult(note=summarize(rows) + rest)


def _read_earlier(path: Path) -> list[OperatorRow]:
    try:
        return read_value(path, list[OperatorRow])
    except StoreError as error:
        raise ConfigError(
            f"operators.against={path} is no table of operators: {error.message}",
            next_step=f"give the {TABLE_FILE} that an earlier run has left in public/",
        ) from error


STAGE = Stage(
    name="operators",
    place=230,
    reads=("environment.target", "dump", "introduced"),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if is_planned(config) else (),
)

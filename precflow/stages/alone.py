"""Stage ``whatif.suspects_alone``: the target runs its suspects once more, each alone, with the inputs of either side.

Unlike other what-ifs it comes before ``advise``: that a suspect is wrong in the run and right alone is evidence for rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.agent.contract import CALLS_FILE, REPLAYED_FILE
from precflow.config.schema import RunConfig
from precflow.config.sections.whatifs import SUSPECTS_ALONE
from precflow.diagnosis.advice.whatif import OUTCOMES_FILE, describe
from precflow.diagnosis.alone import RunAlone, conclude_alone, decide_alone
from precflow.diagnosis.evaluation import pair_calls, write_calls
from precflow.dumps.requests import environment_request
from precflow.sides.launch import REQUEST_FILE
from precflow.stages import evaluation, introduced
from precflow.stages.artifacts import read_json_lines, read_lines, write_lines
from precflow.stages.job import Job, Stage, StageResult, ask_agent, tries_whatifs
from precflow.stages.second_pass.passes import open_both

NAME = "whatif.suspects_alone"
RUNS_FILE = "alone.jsonl"
_MOST = 32  # suspects


def read_alone(needs: Mapping[str, Path]) -> list[RunAlone]:
    """Return what the runs alone have shown; nothing without the stage."""
    return read_lines(needs[NAME] / RUNS_FILE, RunAlone) if NAME in needs else []


def _declare(job: Job) -> Mapping[str, Any]:
    del job
    return {}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    _, _, region = introduced.read_conclusion(needs)
    reference, target = open_both(needs, job)
    wanted = {suspect.record: suspect for suspect in region.suspects[:_MOST]}
    pairs = pair_calls(reference, target)
    suspects = {
        (pair.name, record.index): wanted[record.text]
        for pair in pairs
        for record in pair.reference.outputs
        if record.text in wanted
    }
    names = {call for call, _ in suspects}
    written = write_calls(folder / CALLS_FILE, reference, target, only=names)
    if written.pairs:
        ask_agent(job, "target", {**environment_request(job.config, "target", folder, ci=job.ci), "action": "replay"}, folder)
    runs = decide_alone(
        suspects,
        introduced.read_introduced(needs),
        evaluation.read_evaluated(needs[evaluation.NAME]),
        read_json_lines(folder / REPLAYED_FILE) if written.pairs else [],
        {pair.name: pair.reference.operator or pair.reference.class_name for pair in pairs},
    )
    for left in (CALLS_FILE, REQUEST_FILE, REPLAYED_FILE):
        (folder / left).unlink(missing_ok=True)  # they have paths of this machine
    outcome = conclude_alone(runs)
    write_lines(folder / RUNS_FILE, runs)
    write_lines(folder / OUTCOMES_FILE, [outcome])
    return StageResult(note=describe(outcome))


def _is_planned(config: RunConfig) -> bool:
    return SUSPECTS_ALONE in config.whatif and tries_whatifs(config) and evaluation.is_planned(config)


STAGE = Stage(
    name="whatif.suspects_alone",
    place=240,
    reads=("environment.target", "dump", "judge", "localize", "introduced"),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if _is_planned(config) else (),
)

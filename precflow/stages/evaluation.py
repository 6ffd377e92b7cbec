"""Stage ``introduced.evaluation``: computes the recorded calls again in float64, for the stage ``introduced``.

It is the work of an agent in the judge's own interpreter, on the CPU, from the dumps alone. No side runs again. As it knows no
limit, a changed one evaluates nothing again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import CALLS_FILE, ERRORS_FILE, EVALUATED_FILE, REQUEST_SCHEMA
from precflow.config.schema import RunConfig, Side, plain
from precflow.diagnosis import operator_standards
from precflow.diagnosis.evaluation import pair_calls, write_calls
from precflow.diagnosis.introduced import Evaluated, SideNumbers
from precflow.diagnosis.training.gradients import Gradients, measure_gradients
from precflow.diagnosis.training.replay import ReplayedStep, replay_steps
from precflow.dumps.protocol import Dump
from precflow.dumps.requests import describe_side
from precflow.errors import SideError, StoreError
from precflow.judgement import standards
from precflow.sides.launch import REQUEST_FILE, run_agent
from precflow.stages.artifacts import read_json_lines, write_lines, write_value
from precflow.stages.compare import read_measures
from precflow.stages.determinism import read_reproduction
from precflow.stages.job import Job, Stage, StageResult, is_chosen
from precflow.stages.second_pass.passes import latest, open_both

NAME = "introduced.evaluation"
EVALUATION_FILE = "evaluation.json"
STEPS_FILE = "optimizer_steps.jsonl"
GRADIENTS_FILE = "gradients.json"
NOTHING_KEPT = "no call was computed again in float64: the dumps have no call with all of its tensors"
_WITHOUT_TORCH = ("workload", "unsupported")  # what an agent calls it that this interpreter has no torch, or too old a one


def is_planned(config: RunConfig) -> bool:
    """Tell whether calls are computed again: a recipe's ``stages``, if any, name ``introduced``."""
    return is_chosen(config, NAME)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation could not do.

    Attributes:
        left_out: Calls that were too many to be read.
        not_whole: Calls of which a side did not keep all tensors.
        trouble: Why nothing was evaluated, or ``""``.
    """

    left_out: int = 0
    not_whole: int = 0
    trouble: str = ""


def read_evaluated(folder: Path) -> list[Evaluated]:
    """Return the numbers of an evaluation."""
    file = folder / EVALUATED_FILE
    return [_read(plain) for plain in read_json_lines(file)] if file.exists() else []


def load_standards(job: Job) -> list[standards.Standard]:
    """Return the standards of the recipe that judge operators."""
    loaded = [standards.load(name, job.team.get("standard", ())) for name in job.config.tolerance.standards]
    return [one for one in loaded if one.judges_operators]


def _declare(job: Job) -> Mapping[str, Any]:
    asked = operator_standards.list_asked(load_standards(job))
    return {
        **({"errors": asked} if asked else {}),
        **({"pairing": plain(job.config.pairing)} if job.config.pairing.rules else {}),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    skipped, steps, gradients = Evaluation(), list[ReplayedStep](), Gradients()
    if not read_reproduction(latest(needs, "determinism")).blockers:
        reference, target = open_both(needs, job)
        skipped = evaluate_calls(
            reference, target, folder=folder, evaluate=functools.partial(evaluate_here, job), holding=load_standards(job)
        )
        steps = replay_steps(reference, target, pair_calls(reference, target))
        gradients = measure_gradients(reference, target, read_measures(latest(needs, "compare")))
    write_value(folder / EVALUATION_FILE, skipped)
    write_lines(folder / STEPS_FILE, steps)
    write_value(folder / GRADIENTS_FILE, gradients)
    rest = f"; {skipped.not_whole} calls were not kept whole" if skipped.not_whole else ""
    note = skipped.trouble or f"{len(read_evaluated(folder))} outputs computed again in float64{rest}"
    return StageResult(note=note, damaged=skipped.trouble not in {"", NOTHING_KEPT})  # once there is a torch, it is made


def evaluate_calls(
    reference: Dump,
    target: Dump,
    *,
    folder: Path,
    evaluate: Callable[[Path], None],
    holding: Sequence[standards.Standard] = (),
) -> Evaluation:
    """Evaluate the calls of two dumps in float64, and leave ``evaluated.jsonl`` in the folder if there are any.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        folder: Folder to work in.
        evaluate: Evaluates the ``calls.jsonl`` of a folder and leaves ``evaluated.jsonl`` in it, as the agent's action does.
        holding: Standards that judge operators, and have numbers of their own.

    Raises:
        SideError: The agent was killed, crashed or hung, or what it found cannot be written.
    """
    written = write_calls(folder / CALLS_FILE, reference, target)
    skipped = Evaluation(written.left_out, written.not_whole)
    if not written.pairs:
        (folder / CALLS_FILE).unlink()
        return replace(skipped, trouble=NOTHING_KEPT)
    if holding:
        (folder / ERRORS_FILE).write_text(json.dumps(operator_standards.list_asked(holding)), encoding="utf-8")
    problem = ask(evaluate, folder)
    return replace(skipped, trouble=f"no call was evaluated in float64: {problem}") if problem else skipped


def ask(evaluate: Callable[[Path], None], folder: Path) -> str:
    """Have the calls of a folder evaluated; return why this machine cannot, ``""`` if it has.

    Without torch the diagnosis is poorer, and the verdict by limits stands and says so. An agent that died on the way has found
    no error in the calls that it never came to: that ends the stage.

    Raises:
        SideError: The agent was killed, crashed or hung, or what it found cannot be written.
    """
    try:
        evaluate(folder)
    except SideError as error:
        if error.kind not in _WITHOUT_TORCH:
            raise
        return error.message
    return ""


def evaluate_here(job: Job, folder: Path) -> None:
    """Let an agent on this machine evaluate: that of the reference if it runs in our interpreter and so waits already."""
    side = job.config.reference if _runs_here(job.config.reference) else Side()
    request = {
        "schema": REQUEST_SCHEMA,
        "action": "evaluate",
        "side": "reference",
        "output": str(folder.resolve()),
        "device": ["cpu"],
        # Seeds and switches become environment variables: with the same ones the agent that recorded the side is still waiting.
        "determinism": describe_side(job.config, "reference")["determinism"],
        "parent": None,
    }
    run_agent(
        request,
        side=side,
        folder=folder,
        variables=side.variables,
        timeout=0,
        on_progress=job.say,
        on_amount=job.advance,
        agents=job.agents,
    )
    # They have paths of this machine, and the store may be another's tomorrow.
    for left in (CALLS_FILE, ERRORS_FILE, REQUEST_FILE):
        (folder / left).unlink(missing_ok=True)


def _runs_here(side: Side) -> bool:
    return not (side.interpreter or side.launcher or side.setup or side.dump)


def _read(plain: Mapping[str, Any]) -> Evaluated:
    try:
        sides = {
            name: SideNumbers(**{key: value for key, value in numbers.items() if value is not None})
            for name, numbers in plain.get("sides", {}).items()
        }
        return Evaluated(**{**plain, "sides": sides})
    except TypeError as error:
        raise StoreError(f"{EVALUATED_FILE} has a line that this precflow did not write: {error}") from error


STAGE = Stage(
    name="introduced.evaluation",
    place=210,
    reads=("dump", "determinism", "compare"),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if is_planned(config) else (),
)

"""Stage ``introduced``: evaluates calls in float64 and names the operators that introduce an error of their own.

The evaluation is the work of an agent in the judge's own interpreter, on the CPU, from the dumps alone: no side runs again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import CALLS_FILE, ERRORS_FILE, EVALUATED_FILE, REQUEST_SCHEMA
from precflow.config.schema import Side, plain
from precflow.diagnosis import lines, operator_standards
from precflow.diagnosis.attribution import Attribution, attribute
from precflow.diagnosis.calls_differ import DifferentCall, find_different_calls
from precflow.diagnosis.evaluation import Located, find_doubtful_pairs, find_other_implementations, pair_calls, write_calls
from precflow.diagnosis.findings import Region
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.introduced import Evaluated, IntroducedError, SideNumbers, decide_all
from precflow.dumps.requests import describe_side
from precflow.errors import SideError, StoreError
from precflow.judgement import standards
from precflow.judgement.verdicts import Judged, Verdict
from precflow.sides.launch import REQUEST_FILE, run_agent
from precflow.stages.artifacts import read_json_lines, read_lines, write_lines, write_value
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.judge import JUDGED_FILE, VERDICT_FILE, read_judged, read_verdict
from precflow.stages.localize import REGION_FILE, read_region
from precflow.stages.passes import latest, newest, open_both

NAME = "introduced"
FOUND_FILE = "introduced.jsonl"


def stage(*, second_pass: bool) -> Stage:
    """Return the stage; with a second pass it reads the tensors of both passes."""
    needs = newest(("dump.reference", "dump.target", "determinism", "judge", "localize"), second_pass=second_pass)
    return Stage(name=NAME, needs=needs, declare=_declare, make=_make)


def read_conclusion(needs: Mapping[str, Path]) -> tuple[list[Judged], Verdict, Region]:
    """Return statuses, verdict and region as they stand: after the evaluation in float64 if there was one."""
    if NAME in needs:
        folder = needs[NAME]
        return read_judged(folder), read_verdict(folder), read_region(folder)
    judge = latest(needs, "judge")
    return read_judged(judge), read_verdict(judge), read_region(latest(needs, "localize"))


def read_introduced(needs: Mapping[str, Path]) -> list[IntroducedError]:
    """Return what was found about each evaluated output; none without the stage."""
    return read_lines(needs[NAME] / FOUND_FILE, IntroducedError) if NAME in needs else []


def _declare(job: Job) -> Mapping[str, Any]:
    held = {one.name: plain(one) for one in _load_standards(job)}
    declared = {"lines": {name: value for name, value in vars(lines).items() if name.isupper()}}
    return {**declared, "standards": held} if held else declared


def _load_standards(job: Job) -> list[standards.Standard]:
    """Return the standards of the recipe that judge operators."""
    loaded = [standards.load(name, job.team.get("standard", ())) for name in job.config.tolerance.standards]
    return [one for one in loaded if one.judges_operators]


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    judge = latest(needs, "judge")
    judged, verdict, region = read_judged(judge), read_verdict(judge), read_region(latest(needs, "localize"))
    reference, target = open_both(needs, job)
    found, skipped, final = evaluate_and_attribute(
        reference,
        target,
        judged,
        verdict,
        region,
        folder=folder,
        evaluate=functools.partial(_ask_agent, job),
        holding=_load_standards(job),
    )
    write_lines(folder / FOUND_FILE, found)
    write_lines(folder / JUDGED_FILE, final.judged)
    write_value(folder / VERDICT_FILE, final.verdict)
    write_value(folder / REGION_FILE, final.region)
    return StageResult(note=_describe(found, skipped, final))


def _runs_here(side: Side) -> bool:
    return not (side.interpreter or side.launcher or side.setup or side.dump)


def evaluate_and_attribute(  # noqa: PLR0913  two dumps, what was made of them, and where the agent works
    reference: Located,
    target: Located,
    judged: list[Judged],
    verdict: Verdict,
    region: Region,
    *,
    folder: Path,
    evaluate: Callable[[Path], None],
    holding: Sequence[standards.Standard] = (),
) -> tuple[list[IntroducedError], int, Attribution]:
    """Evaluate the calls of two dumps in float64, and correct region, statuses and verdict by what is found.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        judged: Statuses by limits.
        verdict: The verdict by limits.
        region: The region by first divergence.
        folder: Folder to work in.
        evaluate: Evaluates the ``calls.jsonl`` of a folder and leaves ``evaluated.jsonl`` in it, as the agent's action does.
        holding: Standards that judge operators.

    Returns:
        What was found about each output, how many could not be evaluated, and the corrected diagnosis.
    """
    unchanged = Attribution(region, judged, verdict)
    if not judged:
        return [], 0, unchanged
    pairs, left_out = write_calls(folder / CALLS_FILE, reference, target, first=[one.record for one in region.suspects])
    evaluated: list[Evaluated] = []
    trouble = ""
    if pairs:
        if holding:
            (folder / ERRORS_FILE).write_text(json.dumps(operator_standards.list_asked(holding)), encoding="utf-8")
        try:
            evaluate(folder)
            evaluated = [_read(plain) for plain in read_json_lines(folder / EVALUATED_FILE)]
        except SideError as error:  # the diagnosis is poorer without it, the verdict by limits stands
            trouble = f"no call was evaluated in float64: {error.message}"
    operators = {pair.name: pair.reference.operator or pair.reference.class_name for pair in pairs}
    doubtful = find_doubtful_pairs(pairs, find_other_implementations(reference.calls(), target.calls()))
    found = [one for one in decide_all(evaluated, operators) if one.call not in doubtful]
    same_dtype = reference.header.dtype == target.header.dtype
    every = pair_calls(reference, target)
    different: list[DifferentCall] = find_different_calls(every, reference.calls(), target.calls(), same_dtype=same_dtype)
    outside = frozenset(entry.content for entry in reference.header.inputs.entries.values())
    final = attribute(
        build_graph(reference.calls(), outside=outside),
        region,
        judged,
        verdict,
        pairs=pairs,
        found=found,
        different=different,
        left_out=left_out,
    )
    if holding:
        statuses, outcome = operator_standards.apply(
            [operator_standards.hold_all(one, evaluated, operators) for one in holding],
            final.judged,
            final.verdict,
            records={(pair.name, record.index): record.text for pair in pairs for record in pair.reference.outputs},
            names={pair.name: pair.reference.name for pair in pairs},
        )
        final = replace(final, judged=statuses, verdict=outcome)
    if trouble:
        final = replace(final, region=replace(final.region, notes=(*final.region.notes, trouble)))
    return found, sum(not one.evaluated for one in evaluated), final


def _ask_agent(job: Job, folder: Path) -> None:
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
    run_agent(request, side=side, folder=folder, variables=side.variables, timeout=0, on_progress=job.say, agents=job.agents)
    # They have paths of this machine, and the store may be another's tomorrow.
    for left in (CALLS_FILE, ERRORS_FILE, REQUEST_FILE):
        (folder / left).unlink(missing_ok=True)


def _read(plain: Mapping[str, Any]) -> Evaluated:
    try:
        sides = {
            name: SideNumbers(**{key: value for key, value in numbers.items() if value is not None})
            for name, numbers in plain.get("sides", {}).items()
        }
        return Evaluated(**{**plain, "sides": sides})
    except TypeError as error:
        raise StoreError(f"{EVALUATED_FILE} has a line that is none of this precflow: {error}") from error


def _describe(found: Sequence[IntroducedError], skipped: int, final: Attribution) -> str:
    if not found:
        return "no call was evaluated: neither side kept all tensors of one"
    wrong = sum(one.is_fault for one in found)
    start = f", first {final.region.start}" if wrong and final.region.start else ""
    rest = f" ({skipped} could not be)" if skipped else ""
    return f"{len(found)} outputs evaluated in float64{rest}, {wrong} introduce{'s' * (wrong == 1)} an error{start}"

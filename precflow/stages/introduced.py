"""Stage ``introduced``: computes calls again in float64 and names the operators that introduce an error of their own.

The numbers come from :mod:`precflow.stages.evaluation`.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow.agent.contract import CALLS_FILE, EVALUATED_FILE
from precflow.comparison.measure import Measure
from precflow.config.schema import plain
from precflow.config.sections.standards import are_measured
from precflow.diagnosis import operator_standards
from precflow.diagnosis.attribution import Attribution, attribute
from precflow.diagnosis.calls_differ import DifferentCall, find_different_calls
from precflow.diagnosis.chain import hold_to_parts
from precflow.diagnosis.dropped_steps import blame_first_broken, find_first_broken
from precflow.diagnosis.evaluation import (
    find_doubtful_pairs,
    find_other_implementations,
    name_call,
    name_outputs,
    pair_calls,
)
from precflow.diagnosis.examined import choose_examined
from precflow.diagnosis.explained import Explanation, describe_left_out, list_gradients, read_explanation, write_suspects
from precflow.diagnosis.findings import Region
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.introduced import Evaluated, IntroducedError, decide_all
from precflow.diagnosis.training.gradients import Gradients, blame_left, find_left_gradients, follow_clipping
from precflow.diagnosis.training.replay import ReplayedStep, judge_steps
from precflow.diagnosis.training.updates import blame_still, find_still_parameters
from precflow.dumps.protocol import Dump
from precflow.judgement import lines, standards
from precflow.judgement.conversion import take_links
from precflow.judgement.curves import judge_curves_alone
from precflow.judgement.task import hold_to_task
from precflow.judgement.verdicts import Judged, Verdict
from precflow.stages import curves, evaluation, golden
from precflow.stages.artifacts import read_json_lines, read_lines, read_value, write_lines, write_value
from precflow.stages.chain import read_parts
from precflow.stages.compare import read_measures
from precflow.stages.evaluation import (
    EVALUATION_FILE,
    GRADIENTS_FILE,
    STEPS_FILE,
    Evaluation,
    ask,
    load_standards,
    read_evaluated,
)
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.judge import JUDGED_FILE, VERDICT_FILE, read_judged, read_verdict
from precflow.stages.localize import REGION_FILE, read_region
from precflow.stages.second_pass.passes import latest, open_both
from precflow.stages.task_metrics import read_task_metrics

NAME = "introduced"
FOUND_FILE = "introduced.jsonl"
EXPLAINED_FILE = "explained.jsonl"
LEFT_OUT = "no call was computed again in float64: that was left out"


def read_conclusion(needs: Mapping[str, Path]) -> tuple[list[Judged], Verdict, Region]:
    """Return statuses, verdict and region as they stand: after the evaluation in float64 if there was one.

    A run that compares nothing but curves has their verdict.
    """
    if NAME in needs:
        folder = needs[NAME]
        verdict = hold_to_parts(read_verdict(folder), read_parts(needs))
        return read_judged(folder), hold_to_task(verdict, read_task_metrics(needs)), read_region(folder)
    if curves.NAME in needs and not any(name.partition("@")[0] == "judge" for name in needs):
        return [], judge_curves_alone(curves.read_outcomes(needs)), Region()
    judge = latest(needs, "judge")
    judged, verdict = read_judged(judge), read_verdict(judge)
    if judged:  # without, a cause is missing that nobody had looked for
        verdict = replace(verdict, warnings=(*verdict.warnings, LEFT_OUT))
    verdict = hold_to_task(hold_to_parts(verdict, read_parts(needs)), read_task_metrics(needs))
    located = any(name.partition("@")[0] == "localize" for name in needs)  # `stages=[judge]` says what is wrong, and not where
    return judged, verdict, read_region(latest(needs, "localize")) if located else Region()


def read_introduced(needs: Mapping[str, Path]) -> list[IntroducedError]:
    """Return what was found about each evaluated output; none without the stage."""
    return read_lines(needs[NAME] / FOUND_FILE, IntroducedError) if NAME in needs else []


def read_steps(needs: Mapping[str, Path]) -> list[ReplayedStep]:
    """Return the optimizer's steps that were computed again; none without the stage."""
    return read_lines(needs[NAME] / STEPS_FILE, ReplayedStep) if NAME in needs else []


def read_gradients(needs: Mapping[str, Path]) -> Gradients:
    """Return the gradients of both sides; none without the stage."""
    return read_value(needs[NAME] / GRADIENTS_FILE, Gradients) if NAME in needs else Gradients()


def read_explanations(needs: Mapping[str, Path]) -> list[Explanation]:
    """Return what explains suspects; none without the stage."""
    return read_lines(needs[NAME] / EXPLAINED_FILE, Explanation) if NAME in needs else []


def _declare(job: Job) -> Mapping[str, Any]:
    held = {one.name: plain(one) for one in load_standards(job)}
    declared = {"lines": {name: value for name, value in vars(lines).items() if name.isupper()}}
    return {**declared, "standards": held} if held else declared


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    judge = latest(needs, "judge")
    before = Attribution(read_region(latest(needs, "localize")), read_judged(judge), read_verdict(judge))
    reference, target = open_both(needs, job)
    found, skipped, final = attribute_errors(
        reference,
        target,
        before,
        folder=needs[evaluation.NAME],
        measures=read_measures(latest(needs, "compare")),
        holding=load_standards(job),
        guessed=[name for name in job.config.tolerance.standards if are_measured([name])],
        by_golden=golden.read_golden(needs) if golden.NAME in needs else None,
    )
    write_lines(folder / FOUND_FILE, found)
    explained = explain_suspects(
        reference,
        target,
        final.region,
        found,
        folder=folder / "explaining",
        evaluate=functools.partial(evaluation.evaluate_here, job),
    )
    write_lines(folder / EXPLAINED_FILE, explained)
    final = replace(final, region=replace(final.region, notes=(*final.region.notes, *describe_left_out(explained))))
    for name in (STEPS_FILE, GRADIENTS_FILE):  # for the stages that come after
        shutil.copyfile(needs[evaluation.NAME] / name, folder / name)
    write_lines(folder / JUDGED_FILE, final.judged)
    write_value(folder / VERDICT_FILE, take_links(final.verdict, reference.header, target.header))
    write_value(folder / REGION_FILE, final.region)
    return StageResult(note=_describe(found, skipped, final))


def explain_suspects(  # noqa: PLR0913  two dumps and what was found in them
    reference: Dump,
    target: Dump,
    region: Region,
    found: Sequence[IntroducedError],
    *,
    folder: Path,
    evaluate: Callable[[Path], None],
) -> list[Explanation]:
    """Compute the first suspects again with one thing changed at a time; nothing runs where float64 cleared them all.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        region: The suspects.
        found: What was found about outputs.
        folder: Folder to work in; it is removed.
        evaluate: As of :func:`evaluate_calls`.

    Raises:
        SideError: As :func:`evaluate_calls`.
    """
    suspects = {suspect.record for suspect in choose_examined(region.suspects)}
    if not suspects:
        return []
    wrong = {one.call for one in found if one.is_fault}
    cleared = {one.call for one in found} - wrong
    named = {name_call(call) for call in reference.calls() if any(record.text in suspects for record in call.outputs)}
    gradients = list_gradients(reference, target, suspects, wrong)
    folder.mkdir()
    try:
        if not write_suspects(folder / CALLS_FILE, reference, target, named - cleared, gradients) or ask(evaluate, folder):
            return []
        explained = [read_explanation(line) for line in read_json_lines(folder / EVALUATED_FILE)]
    finally:
        shutil.rmtree(folder)
    return [one for one in explained if one is not None]


def attribute_errors(  # noqa: PLR0913  two dumps and what was made of them
    reference: Dump,
    target: Dump,
    before: Attribution,
    *,
    folder: Path,
    measures: Sequence[Measure] = (),
    holding: Sequence[standards.Standard] = (),
    guessed: Collection[str] = (),
    by_golden: Sequence[Evaluated] | None = None,
) -> tuple[list[IntroducedError], int, Attribution]:
    """Correct region, statuses and verdict by what was evaluated in float64.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        before: The region by first divergence, statuses and verdict by limits.
        folder: Folder of the evaluation.
        measures: Every pair.
        holding: Standards that judge operators.
        guessed: Standards that measure their limits.
        by_golden: Errors of records against a golden run, which dual benchmarks are then held to; ``None`` without such a run.

    Returns:
        What was found about each output, how many could not be evaluated, and the corrected diagnosis.
    """
    if not before.judged:
        return [], 0, before
    evaluated, skipped = read_evaluated(folder), read_value(folder / EVALUATION_FILE, Evaluation)
    every = pair_calls(reference, target)
    evaluated = name_outputs(evaluated, every)
    computed = {one.call for one in evaluated}
    steps = read_lines(folder / STEPS_FILE, ReplayedStep)
    computed.update(one.call for one in steps)
    pairs = [pair for pair in every if pair.name in computed]
    operators = {pair.name: pair.reference.operator or pair.reference.class_name for pair in pairs}
    doubtful = find_doubtful_pairs(pairs, find_other_implementations(reference.calls(), target.calls()))
    found = [one for one in decide_all(evaluated, operators) if one.call not in doubtful] + judge_steps(steps, pairs)
    same_dtype = reference.header.dtype == target.header.dtype
    different: list[DifferentCall] = find_different_calls(every, reference.calls(), target.calls(), same_dtype=same_dtype)
    outside = frozenset(entry.content for entry in reference.header.inputs.entries.values())
    final = attribute(
        build_graph(reference.calls(), outside=outside),
        before,
        pairs=pairs,
        found=found,
        different=different,
        left_out=skipped.left_out,
        guessed=guessed,
    )
    wrong = {(one.call, one.index) for one in found if one.is_fault}
    kept = {record.text for pair in pairs for record in pair.reference.outputs if (pair.name, record.index) in wrong}
    still = find_still_parameters(reference, target, measures)
    blamed = blame_still(final.region, still, reference.calls(), kept=kept)
    blamed = blame_left(blamed, find_left_gradients(reference, target), reference.calls())
    blamed = follow_clipping(blamed, reference, target, kept=kept)
    final = replace(final, region=blame_first_broken(blamed, find_first_broken(reference, target)))
    if holding:
        of_run = {record.text: call for call in reference.calls() for record in call.outputs} if by_golden else {}
        names_of_run = {text: call.operator or call.class_name for text, call in of_run.items()}
        held = [
            operator_standards.hold_all(one, evaluated, operators)
            if by_golden is None or one.benchmark is None
            else operator_standards.hold_all(one, by_golden, names_of_run, golden="the golden run")
            for one in holding
        ]
        statuses, outcome = operator_standards.apply(
            held,
            final.judged,
            final.verdict,
            records={(pair.name, record.index): record.text for pair in pairs for record in pair.reference.outputs}
            | {(text, ""): text for text in of_run},
            names={pair.name: pair.reference.name for pair in pairs} | {text: call.name for text, call in of_run.items()},
        )
        final = replace(final, judged=statuses, verdict=outcome)
    if skipped.trouble:  # a verdict without it is a weaker one, and says so
        final = replace(
            final,
            region=replace(final.region, notes=(*final.region.notes, skipped.trouble)),
            verdict=replace(final.verdict, warnings=(*final.verdict.warnings, skipped.trouble)),
        )
    return found, sum(not one.evaluated for one in evaluated), final


def _describe(found: Sequence[IntroducedError], skipped: int, final: Attribution) -> str:
    if not found:
        return "no call was evaluated: neither side kept all tensors of one"
    wrong = sum(one.is_fault for one in found)
    start = f", first {final.region.start}" if wrong and final.region.start else ""
    rest = f" ({skipped} could not be)" if skipped else ""
    return f"{len(found)} outputs evaluated in float64{rest}, {wrong} introduce{'s' * (wrong == 1)} an error{start}"


STAGE = Stage(
    name="introduced",
    place=220,
    reads=("dump", "compare", "judge", "localize", golden.NAME, evaluation.NAME),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if evaluation.is_planned(config) else (),
)

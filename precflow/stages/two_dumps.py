"""Compares and judges two dumps without a recipe, with the default limits and without running a side."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from precflow import resources
from precflow.comparison.compare import compare
from precflow.comparison.measure import Measure, mark_altered_unreadable
from precflow.config.schema import SAME_AT_START, RunConfig, Side, Tolerance
from precflow.diagnosis.advice import rule_files, rules
from precflow.diagnosis.choices import make_settler
from precflow.diagnosis.evaluation import pair_calls
from precflow.diagnosis.evidence.collect import collect
from precflow.diagnosis.evidence.training import (
    find_other_averages,
    find_other_numbers,
    find_other_settings,
    moves_no_weight,
)
from precflow.diagnosis.findings import Finding, Region
from precflow.diagnosis.localize import localize
from precflow.diagnosis.training.gradients import Gradients, measure_gradients
from precflow.diagnosis.training.phases import tell_phases
from precflow.diagnosis.training.replay import ReplayedStep, replay_steps
from precflow.diagnosis.training.updates import blame_still, describe_still, find_still_parameters
from precflow.dumps.lookup import FoundRecord
from precflow.dumps.reader import Dump
from precflow.dumps.records import Call
from precflow.dumps.views.paired import see_through_rules
from precflow.dumps.views.same_inputs import INPUTS
from precflow.environment.changes import find_changes
from precflow.environment.reproduction import describe_copy, find_blockers
from precflow.judgement.carried import find_carried
from precflow.judgement.inputs import JudgeInput, make_input_judge
from precflow.judgement.judge import judge
from precflow.judgement.verdicts import Judged, Verdict
from precflow.metrics import METRICS
from precflow.report.model import ReportModel, Row
from precflow.stages.determinism import Reproduction, reproduce
from precflow.stages.judge import find_dtypes
from precflow.stages.report_model import build_model

_NO_GRADIENTS = Gradients()


class OneRecordDump(Dump):
    """A dump reduced to one record, which becomes the only output of the only call, so that inputs can be compared too."""

    def __init__(self, whole: Dump, found: FoundRecord) -> None:
        super().__init__(whole.path, whole.header, sealed=whole.sealed)
        self._only = msgspec.structs.replace(found.call, outputs=(found.record,))

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the one call if it is of this step and rank."""
        return [self._only] if step in {None, self._only.step} and rank in {None, self._only.rank} else []


def compare_record(reference: Dump, target: Dump, left: FoundRecord, right: FoundRecord) -> Row:
    """Measure and judge one record of both sides, an input as well as an output.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        left: The record on the reference.
        right: The same on the target.
    """
    measures = compare(OneRecordDump(reference, left), OneRecordDump(target, right))
    judged, _ = judge_dumps(RunConfig().tolerance, reference, target, measures, Reproduction())
    return Row(measures[0], judged[0], "unknown")


def compare_dumps(  # noqa: PLR0913  each is a fact of its own, and all but two go by name
    reference: Dump,
    target: Dump,
    *,
    command: str,
    tolerance: Tolerance = RunConfig().tolerance,  # noqa: B008  frozen
    same: Sequence[str] = SAME_AT_START,
    team: Sequence[Path] = (),
) -> ReportModel:
    """Compare and judge two dumps. What stands in the way of a verdict is reported as in a run.

    Args:
        reference: Dump of the reference; relative errors are relative to its values.
        target: Dump of the target.
        command: The command line as the user may type it again.
        tolerance: The limits.
        same: What has to be the same on both sides: ``weights``, ``inputs``.
        team: Folders with rules besides the shipped ones.
    """
    started = time.monotonic()
    reference, target = see_through_rules(reference, target, (), same)
    reproduction = reproduce(reference, target, same)
    measures = [] if reproduction.blockers else mark_altered_unreadable(compare(reference, target), reference, target)
    other_settings = {} if reproduction.blockers else find_other_numbers(reference, target)
    if not reproduction.blockers:  # nothing that could be compared knows of the rate
        reproduction = replace(reproduction, unseen=(*reproduction.unseen, *find_other_averages(reference, target)))
    still = [] if reproduction.blockers else find_still_parameters(reference, target, measures)
    judged, verdict = judge_dumps(
        tolerance, reference, target, measures, reproduction, other_settings=other_settings, still=describe_still(still)
    )
    dtypes = find_dtypes(reference, target, measures)
    copy = describe_copy(reference.header, target.header)
    verdict = replace(
        verdict,
        reasons=(*verdict.reasons, *_suggest_comparing(reproduction, reference, target, same, command)),
        warnings=(*([copy] if copy else []), *reproduction.given, *verdict.warnings),
        changes=find_changes(reference.header, target.header),
    )
    inputs = _judge_inputs(tolerance, reference, target, dtypes)
    region = localize(reference, target, measures, judged, inputs)
    region = blame_still(region, still, reference.calls())
    steps = [] if reproduction.blockers else replay_steps(reference, target, pair_calls(reference, target))
    gradients = Gradients() if reproduction.blockers else measure_gradients(reference, target, measures)
    findings = find_advice(
        reference,
        target,
        region=region,
        measures=measures,
        judged=judged,
        reproduction=reproduction,
        steps=steps,
        gradients=gradients,
        team=team,
    )
    phases = tell_phases(
        reference, target, measures=measures, judged=judged, verdict=verdict, region=region, judge_input=inputs
    )
    recipes = filter(None, (dump.header.recipe for dump in (reference, target)))
    return build_model(
        reference,
        target,
        measures=measures,
        judged=judged,
        verdict=verdict,
        region=region,
        findings=findings,
        phases=phases,
        settings=find_other_settings(reference, target),
        without_updates=moves_no_weight(reference, target),
        still=tuple(describe_still(still)),
        steps=steps,
        gradients=gradients.rows,
        recipe=" and ".join(dict.fromkeys(recipes)) or "two dumps",
        title="Two dumps",
        command=command,
        columns=METRICS,
        seconds=time.monotonic() - started,
    )


def _suggest_comparing(
    reproduction: Reproduction, reference: Dump, target: Dump, same: Sequence[str], command: str
) -> list[str]:
    """Say how to compare nevertheless if only other weights or inputs stand in the way."""
    headers = (reference.header, target.header)
    left = [what for what in same if what not in {"weights", INPUTS} or not find_blockers(*headers, [what])]
    if not (reproduction.blockers or reproduction.parted) or find_blockers(*headers, left):
        return []
    how = f"--same {','.join(left) or 'nothing'}" if command else f"same={tuple(left)}"
    return [f"{how} compares them nevertheless, if they differ on purpose"]


def find_advice(  # noqa: PLR0913  the evidence that rules are about, each by its own name
    reference: Dump,
    target: Dump,
    *,
    region: Region,
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    reproduction: Reproduction,
    steps: Sequence[ReplayedStep] = (),
    gradients: Gradients = _NO_GRADIENTS,
    team: Sequence[Path] = (),
) -> list[Finding]:
    """Return the findings of the rules, best first, without commands to try: nothing can be run again without a recipe."""
    evidence = collect(
        reference,
        target,
        region=region,
        measures=measures,
        judged=judged,
        config=RunConfig(),
        blockers=reproduction.blockers,
        incomplete=reproduction.incomplete,
        steps=steps,
        gradients=gradients,
    )
    known = rule_files.load_rules([resources.directory("conf") / "rule"], team)
    return [replace(finding, try_it="", confirm="") for finding in rules.advise(evidence, known)]


def _judge_inputs(tolerance: Tolerance, reference: Dump, target: Dump, dtypes: tuple[str, str]) -> JudgeInput:
    return make_input_judge(
        reference,
        target,
        tolerance,
        reference_dtype=dtypes[0],
        target_dtype=dtypes[1],
        carried=find_carried(reference.calls()),
    )


def judge_dumps(  # noqa: PLR0913  each is a fact of its own
    tolerance: Tolerance,
    reference: Dump,
    target: Dump,
    measures: Sequence[Measure],
    reproduction: Reproduction,
    *,
    other_settings: Mapping[str, Sequence[str]] | None = None,
    still: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[Judged], Verdict]:
    """Judge the measures of two dumps, by a tolerance and the floating point types that the sides ran in."""
    dtypes = find_dtypes(reference, target, measures)
    inputs = _judge_inputs(tolerance, reference, target, dtypes)
    return judge(
        measures,
        RunConfig(reference=Side(dump=str(reference.path)), target=Side(dump=str(target.path)), tolerance=tolerance),
        reference_dtype=dtypes[0],
        target_dtype=dtypes[1],
        blockers=reproduction.gaps,
        amounts=reproduction.amounts,
        unrepeatable=reproduction.unrepeatable,
        other_settings=other_settings or {},
        still=still or {},
        today=datetime.datetime.now(tz=datetime.timezone.utc).date(),
        without_floors="two given dumps have none, a run of the recipe measures it",
        carried=find_carried(reference.calls()),
        settle_choices=make_settler(reference, target, inputs),
        losses=(reference.header.loss_of_step, target.header.loss_of_step),
    )

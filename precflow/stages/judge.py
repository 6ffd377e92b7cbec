"""Stage ``judge``: applies limits to measures and gives the verdict."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.comparison.measure import Measure
from precflow.config.schema import SIDES, plain
from precflow.config.vocabulary import ESCALATING
from precflow.diagnosis.choices import make_settler
from precflow.diagnosis.evidence.training import find_other_averages, find_other_numbers
from precflow.diagnosis.padding import mark_padding
from precflow.diagnosis.residual import mark_residuals
from precflow.diagnosis.training.gradients import describe_left, find_left_gradients
from precflow.diagnosis.training.updates import describe_still, find_still_parameters
from precflow.dumps.collectives import find_regrouped
from precflow.dumps.loss_parts import find_loss_parts
from precflow.dumps.protocol import Dump
from precflow.dumps.repeated_reductions import find_repeated
from precflow.dumps.warm_up import find_warm_ups
from precflow.environment.changes import find_changes
from precflow.environment.unseen import describe_unseen
from precflow.errors import StoreError
from precflow.judgement.as_is import judge_as_is
from precflow.judgement.carried import find_carried
from precflow.judgement.conversion import take_links
from precflow.judgement.floors import find_floors_of_inputs
from precflow.judgement.given_gradients import find_given
from precflow.judgement.inputs import JudgeInput, make_input_judge
from precflow.judgement.judge import Circumstances, Floors, TrainingCourse, judge
from precflow.judgement.verdicts import MISALIGNED_STATUSES, STATUSES, VERDICTS, AsIs, Judged, Verdict
from precflow.stages import as_is, curves, noise
from precflow.stages.artifacts import read_lines, read_once, read_value, write_lines, write_value
from precflow.stages.compare import read_measures
from precflow.stages.determinism import Reproduction, read_reproduction
from precflow.stages.job import Job, Stage, StageResult
from precflow.stages.second_pass.passes import latest, open_both, second

JUDGED_FILE = "judged.jsonl"
VERDICT_FILE = "verdict.json"
_NOTHING_IN_THE_WAY = Reproduction()


def read_judged(folder: Path) -> list[Judged]:
    """Return the status of every record.

    Raises:
        StoreError: The file cannot be read, or has a word that is no status.
    """
    return read_once(_read_judged, folder / JUDGED_FILE)


def _read_judged(path: Path) -> list[Judged]:
    judged = read_lines(path, Judged)
    _check_words(path, {record.status for record in judged}, STATUSES)
    return judged


def read_verdict(folder: Path) -> Verdict:
    """Return the verdict.

    Raises:
        StoreError: The file cannot be read, or has a word that is no verdict.
    """
    verdict = read_value(folder / VERDICT_FILE, Verdict)
    _check_words(folder / VERDICT_FILE, {verdict.verdict}, VERDICTS)
    return verdict


def _check_words(path: Path, found: Collection[str], known: Sequence[str]) -> None:
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise StoreError(
            f"{path} says {', '.join(map(repr, unknown))}; expected {', '.join(known)}",
            next_step="remove the folder it is in and run the same command again; other stages are kept",
        )


def _declare(job: Job) -> Mapping[str, Any]:
    today, capture = _today().isoformat(), job.config.capture
    files = [folder / f"{name}.yaml" for name in job.config.tolerance.standards for folder in job.team.get("standard", ())]
    # The first folder wins if two have a standard of the same name: reversed, it is written last.
    of_team = {file.stem: keys.file_digest(file) for file in reversed(files) if file.is_file()}
    return {
        "tolerance": plain(job.config.tolerance),
        "accepted": plain(job.config.accepted),
        # The date itself is not in the key, or each day would judge again: only the entries that have expired by now are.
        "expired": [bool(entry.until) and entry.until < today for entry in job.config.accepted],
        "coverage": plain(job.config.coverage),
        # Settings that decide which remedy is proposed for an undecided record. Only whether they are set matters, so that
        # a larger budget, for instance, does not judge again.
        "remedies": [
            capture.detail == ESCALATING,
            bool(capture.budget),
            bool(capture.keep_last),
            bool(job.config.stages),
        ],
        "as is": as_is.explain_left_out(job.config),
        "standards": keys.file_digest(resources.directory("conf") / "standard"),
        **({"standards of the team": of_team} if of_team else {}),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    reproduction = read_reproduction(latest(needs, "determinism"))
    measures = read_measures(latest(needs, "compare"))
    reference, target = open_both(needs, job)
    judged, verdict = judge_pair(job, needs, reference, target, measures, reproduction)
    verdict = replace(
        verdict,
        warnings=(*reproduction.given, *verdict.warnings),
        changes=find_changes(reference.header, target.header),
    )
    verdict = take_links(verdict, reference.header, target.header)
    dtypes = find_dtypes(reference, target, measures)
    verdict = _take_as_is(job, needs, verdict, list(zip(measures, judged, strict=True)), dtypes)
    write_lines(folder / JUDGED_FILE, judged)
    write_value(folder / VERDICT_FILE, verdict)
    return StageResult(note=verdict.verdict)


def judge_pair(  # noqa: PLR0913, PLR0917  two dumps, and what was made of them
    job: Job,
    needs: Mapping[str, Path],
    reference: Dump,
    target: Dump,
    measures: Sequence[Measure],
    reproduction: Reproduction = _NOTHING_IN_THE_WAY,
) -> tuple[list[Judged], Verdict]:
    """Judge the measures of two dumps: by this one function everywhere, so that a pair has one verdict.

    Args:
        job: Its recipe has the limits.
        needs: Stages that have measured noise floors or curves are read, if they are among these.
        reference: What the reference kept.
        target: What the target kept, or a trial of it.
        measures: Every pair of records, in order.
        reproduction: What stands in the way of a verdict.
    """
    dtypes = find_dtypes(reference, target, measures)
    floors = noise.read_floors(needs)
    judge_input = judge_inputs(job, needs, reference, target, dtypes)
    settle = make_settler(reference, target, judge_input, floors)
    padding, residuals = (
        make(reference, target, lambda left, right: judge_inputs(job, needs, left, right, dtypes))
        for make in (mark_padding, mark_residuals)
    )

    left = None if reproduction.blockers else find_left_gradients(reference, target)

    def settle_all(measures: Sequence[Measure], judged: Sequence[Judged]) -> Sequence[Judged]:
        """Mark near ties, what depends on them, and artefacts of the comparison."""
        for mark in (padding, settle, residuals):
            judged = mark(measures, judged)
        return judged

    return judge(
        measures,
        job.config,
        dtypes=dtypes,
        known=Circumstances(
            today=_today(),
            blockers=(
                *reproduction.gaps,
                *(() if reproduction.blockers else find_other_averages(reference, target)),
            ),
            amounts=reproduction.amounts,
            unseen=describe_unseen(reference.header, target.header),
            unrepeatable=reproduction.unrepeatable,
            other_settings={} if reproduction.blockers else find_other_numbers(reference, target),
            stale=reproduction.stale,
            still={} if reproduction.blockers else describe_still(find_still_parameters(reference, target, measures)),
            uncleared=describe_left(left) if left else "",
            second_pass=second("compare") in needs,
            fused={**target.header.fused, **reference.header.fused},
            regrouped=find_regrouped(reference.calls(), target.calls()),
            repeated=find_repeated(
                reference.calls(),
                target.calls(),
                lambda one, two: judge_input(one, two).status not in MISALIGNED_STATUSES,
            ),
            given=find_given(reference.calls(), target.calls(), judge_input),
            warm_ups=find_warm_ups(reference.calls(), target.calls()),
            loss_parts=find_loss_parts(reference, target),
        ),
        folders=job.team.get("standard", ()),
        floors=Floors(floors, _explain_missing_floors(job, needs), find_carried(reference.calls())),
        settle_choices=settle_all,
        training=TrainingCourse((reference.header.loss_of_step, target.header.loss_of_step), curves.read_outcomes(needs)),
    )


def _take_as_is(
    job: Job, needs: Mapping[str, Path], verdict: Verdict, rows: Sequence[tuple[Measure, Judged]], dtypes: tuple[str, str]
) -> Verdict:
    """Add to a verdict what both sides compute as they are: asked for, and without agreement, it is not aligned."""
    config = job.config
    what = "the script" if config.workload.script else "the workload"
    if why := as_is.explain_left_out(config):
        trains = bool(config.workload.script or config.workload.loss or config.workload.optimizer)
        return replace(verdict, as_is=AsIs(text=f"{what} was not run as it is ({why})" if trains and verdict.changes else ""))
    sides = as_is.read_sides(needs, config)
    missing = [side for side in SIDES if side not in sides]
    if missing:
        found = AsIs(text=f"{what} was not run as it is on the {' and the '.join(missing)}")
    else:
        found = judge_as_is(sides["reference"], sides["target"], rows=rows, dtypes=dtypes, what=what)
    if found.state == "agrees":
        return replace(verdict, as_is=found)
    return replace(
        verdict,
        as_is=found,
        verdict="inconclusive" if verdict.verdict == "aligned" else verdict.verdict,
        reasons=(*verdict.reasons, found.text),
    )


def judge_inputs(
    job: Job,
    needs: Mapping[str, Path],
    reference: Dump,
    target: Dump,
    dtypes: tuple[str, str],
) -> JudgeInput:
    """Return what judges an input by the limits of the run, those that are made of the noise floor as well.

    Args:
        job: Its recipe has the limits.
        needs: If a stage has measured the noise floor, its folder is among them.
        reference: What the reference kept.
        target: What the target kept, or a trial of it.
        dtypes: Floating point types of both runs, see :func:`find_dtypes`.
    """
    floors = noise.read_floors(needs)
    find_floor = find_floors_of_inputs(reference.calls(), floors)
    return make_input_judge(
        reference,
        target,
        job.config.tolerance,
        reference_dtype=dtypes[0],
        target_dtype=dtypes[1],
        folders=job.team.get("standard", ()),
        find_floor=lambda record: floors.get(record.text) or find_floor(record),  # an output has one of its own
        carried=find_carried(reference.calls()),
    )


def _explain_missing_floors(job: Job, needs: Mapping[str, Path]) -> str:
    """Say why there is no noise floor; ``""`` if there is one."""
    if noise.NAME in needs:
        return noise.explain_missing(needs[noise.NAME])
    if job.config.reference.dump:
        both = "two given dumps have none, a run of the recipe measures it"
        return both if job.config.target.dump else "the reference is a given dump"
    return "the store has none of this reference" if noise.is_planned(job.config) else "stages leaves noise out"


def find_dtypes(reference: Dump, target: Dump, measures: Sequence[Measure]) -> tuple[str, str]:
    """Return the floating point types that reference and target ran in.

    That is the type in the header of a dump. A dump without a header has that of most of its records that are judged.
    """
    judged = [measure for measure in measures if measure.judged]
    recorded = ([measure.reference_dtype for measure in judged], [measure.target_dtype for measure in judged])
    most = [Counter(filter(None, dtypes)).most_common(1) for dtypes in recorded]
    of_reference, of_target = (count[0][0] if count else "float32" for count in most)
    return reference.header.dtype or of_reference, target.header.dtype or of_target


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.timezone.utc).date()


STAGE = Stage(
    name="judge",
    place=80,
    reads=("dump", "curves", "noise", "as_is", "determinism", "compare"),
    declare=_declare,
    make=_make,
    repeats=True,
)

"""Runs a recipe: each stage instance is taken from the store if it is there, otherwise made and sealed."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.agent.contract import FACTS_FILE, LOG_FILE
from precflow.breakdown import Breakdown
from precflow.config.schema import SIDES, checks_environment_alone
from precflow.diagnosis.findings import collect_translations
from precflow.environment.variables import describe_misspelt
from precflow.errors import ConfigError, PrecflowError, SideError
from precflow.judgement.verdicts import EXIT_CODES
from precflow.language import said, speaking, spoken
from precflow.report import broken, unjudged, wording
from precflow.report import environment_check as check_report
from precflow.report.ci import format_outcome
from precflow.report.highlights import find_furthest_row
from precflow.report.screens.scan import show_scan
from precflow.report.tables import refuse_missing
from precflow.report.terminal import count_columns, render_summary
from precflow.run import at_once, progress, publication, steps
from precflow.run.at_once import Beside
from precflow.run.forecast import Forecast
from precflow.run.jobs import make_job
from precflow.run.manifest import Manifest, RunEntry
from precflow.run.steps import Agenda
from precflow.run.store import Sealed, mark_used
from precflow.sides.device_log import FOLDER as DEVICE_LOGS
from precflow.sides.launch import Agents
from precflow.stages import as_is, curves, noise, scan
from precflow.stages.artifacts import cache_reads, read_plain
from precflow.stages.commands import command_for_side
from precflow.stages.dump import is_given
from precflow.stages.introduced import read_conclusion
from precflow.stages.job import Instance, Job
from precflow.stages.report import read_check_report, read_model
from precflow.stages.report_model import hide_home
from precflow.stages.second_pass import region
from precflow.streams import is_unicode, say

if TYPE_CHECKING:
    from precflow.config.composition import Composed


_SCAN_PLACES = 20  # of each weight, on the screen
_NOTABLE_BYTES = 10_000_000  # what takes time to move; the rest is moved without a line about it
_FORGONE = {
    noise.KIND: "the store has no noise floor of this reference: fixed limits apply",
    as_is.KIND: "the store does not have what this side computes as it is",
}
_LATER = "the second pass is to be made where the {} runs"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        verdict: ``None`` if there was nothing to judge.
        exit_code: 0, 1 or 3.
        folder: Its run folder.
        report: Its own report in the store; ``None`` if it made none. The run folder shows that of the last run.
        furthest: By how much the worst record is over its limit, as text; ``""`` if none is.
        worst: The same as a share of its limit; ``NaN`` if none is.
        finding: The first finding, with its rule and certainty; ``""`` without one.
        finding_shown: The same in the language of the screen.
        run: Number of the run in its folder.
    """

    verdict: str | None
    exit_code: int
    folder: Path | None = None
    report: Path | None = None
    furthest: str = ""
    worst: float = math.nan
    finding: str = ""
    finding_shown: str = ""
    run: int = 0


def run(composed: Composed, *, command: str) -> Outcome:
    """Run one composed recipe and print its closing summary.

    Raises:
        PrecflowError: It could not be done; finished stages are kept.
    """
    job = make_job(composed, command=command)
    steps.check_stages(job.config)
    refuse_missing(job.config.report.formats)
    for text in describe_misspelt(job.config, os.environ):
        say(f" warning: {text}")
    where = steps.locate_run(job.config)
    steps.refuse_other_recipe(job.config, where)
    asked = job.config.stages
    job = steps.use_what_is_there(job, where)
    started = time.monotonic()
    # The history names a store outside of the run folder, or nobody would find the dumps of this run.
    store = "" if where.store.root == where.folder / "store" else str(where.store.root.resolve())
    entry = replace(where.manifest.begin(job.started, job.command), store=store)
    job = replace(job, run=entry.number)
    done: dict[str, Sealed] = {}
    states: dict[str, str] = {}
    verdict, code = "", 2  # what the history says if an error ends this run
    try:
        publication.withdraw(where.folder)
        with cache_reads():
            # An agent waits between the stages of its side, so that torch is imported once. All of them end with this block.
            with closing(Agents()) as agents:
                job = replace(job, agents=agents)
                with Beside(agents) as beside:
                    note = partial(_note_progress, where.manifest, entry, done, states)
                    due, job = _make_stages(replace(job, asked=asked), where, done, states, beside, note=note)
            kept = None if set(states.values()) - {"kept"} else time.monotonic() - started
            outcome = replace(_close(job, where, done, due, kept=kept), run=entry.number)
        verdict, code = outcome.verdict or "", outcome.exit_code
    except SideError as error:
        if error.breakdown is not None:
            error.within(f"report: {_publish_breakdown(job, where, entry.number, error, error.breakdown, states)}")
        raise
    finally:
        seconds = round(time.monotonic() - started, 1)
        where.manifest.update(replace(_add_progress(entry, done, states), verdict=verdict, exit_code=code, seconds=seconds))
    return outcome


def _publish_breakdown(  # noqa: PLR0913, PLR0917  each is a fact of its own
    job: Job, where: steps.RunFolder, run: int, error: SideError, broke: Breakdown, states: Mapping[str, str]
) -> Path:
    """Publish a page about a side that broke, where the report of the run would be; return the page."""
    shown = broken.BrokenRun(
        recipe=_title(job),
        title=job.config.about.title,
        run=run,
        finished=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        command=hide_home(job.command),
        stage=next(iter(error.context), "").removeprefix("in stage ").partition(" of ")[0],
        message=hide_home(error.message),
        next_step=hide_home(error.next_step),
        breakdown=broke.public(),
        stages=tuple(states.items()),
    )
    with tempfile.TemporaryDirectory(dir=where.folder) as folder:
        broken.write_files(shown, Path(folder) / publication.PUBLIC, job.config.report.formats, job.config.report.language)
        return publication.publish(where.folder, Path(folder))


def _note_progress(manifest: Manifest, entry: RunEntry, done: Mapping[str, Sealed], states: Mapping[str, str]) -> None:
    manifest.update(_add_progress(entry, done, states))


def _add_progress(entry: RunEntry, done: Mapping[str, Sealed], states: Mapping[str, str]) -> RunEntry:
    """Return a run's entry with what it has finished so far, so that a run that fails or is killed names it too."""
    return replace(entry, instances={name: sealed.key for name, sealed in done.items()}, states=dict(states))


def _make_stages(  # noqa: PLR0913  each is a fact of its own
    job: Job,
    where: steps.RunFolder,
    done: dict[str, Sealed],
    states: dict[str, str],
    beside: Beside,
    *,
    note: Callable[[], None],
) -> tuple[tuple[str, ...], Job]:
    """Make or find every instance; return the sides whose second pass another machine has to make, and the job with its stages.

    Args:
        job: The recipe.
        where: Its run folder.
        done: Is filled with each finished instance, by name.
        states: Is filled with the state of each.
        beside: Makes one instance while another is made, where that may be.
        note: Called after each of them; writes it into the history, so that a run that is killed has noted what it finished.
    """
    tell = progress.choose(job.config.output, job.config.recipe, ci=job.ci)
    job = replace(job, say=tell.say, advance=tell.advance)
    agenda, forecast = Agenda(job, where), Forecast(job, where)
    for number, stage in enumerate(agenda):
        # The content of these belongs to the stage's key, so it has to be here before it is known whether the stage is kept.
        done.update({name: _bring(done[name], where, tell) for name in stage.scope_needs if name in done})
        begun = beside.find(stage.name)
        step = begun or steps.resolve(stage, job, where, done)
        if step.state == "missing":
            forgone = agenda.forgo(stage)
            if not forgone and not agenda.postpone(stage):
                raise steps.missing_side_error(step, command_for_side(job, stage.side))
            why = _FORGONE[stage.kind] if forgone else _LATER.format(stage.side)
            tell.done(stage.label, stage.side, "skipped", 0.0, why)
            job = replace(job, stages=(*job.stages, (stage.name, "skipped", 0.0, why)))
            continue
        if step.state == "run" and not step.key:
            raise ConfigError(
                f"stage {stage.name} needs {step.because}, which was never made with these values, and is not in stages=[...]",
                next_step=f"make it too: stages=[{','.join((step.because.partition('.')[0], *job.asked))}]",
            )
        if step.state == "run":
            done.update({name: _bring(done[name], where, tell) for name in stage.needs})
            _begin_beside(beside, step, agenda.following, job, where, done)
        runs = step.state == "run"
        tell.expect(number, forecast.look_ahead(stage, agenda.left, done) if runs else [None] * (1 + len(agenda.left)))
        began = beside.began if begun else time.monotonic()
        with tell.working(stage.label, stage.side):
            sealed = step.sealed or (beside.take() if begun else _make(step, job, where, done))
        if stage.kind != "dump":  # a dump may be large, and is downloaded only when something reads it
            sealed = _bring(sealed, where, tell)
        agenda.learn(stage, sealed)
        done[stage.name], states[stage.name] = sealed, step.state
        mark_used(sealed)
        note()
        seconds = time.monotonic() - began
        if runs:
            forecast.learn(stage, seconds)
        text = sealed.note
        if step.state != "run" and stage.kind == "dump" and (age := wording.describe_age(time.time() - sealed.finished)):
            text = f"{text}, made {age}"
        tell.done(stage.label, stage.side, step.state, seconds, text)
        job = replace(job, stages=(*job.stages, (stage.name, step.state, round(seconds, 2), text)))
        _share(sealed, where, tell)
    return tuple(stage.side for stage in agenda.postponed), job


def _bring(sealed: Sealed, where: steps.RunFolder, tell: progress.Progress) -> Sealed:
    """Return an instance as it is on this machine; one that lies in the remote store is downloaded."""
    if not sealed.upload:
        return sealed
    side, began = sealed.name.partition(".")[2], time.monotonic()
    with tell.working("download", side):
        brought = where.bring(sealed, _show_bytes(tell))
    if brought.bytes >= _NOTABLE_BYTES or brought.damaged:
        tell.done("download", side, "run", time.monotonic() - began, f"{brought.bytes / 1e6:.0f} MB, {brought.note}")
    return brought


def _share(sealed: Sealed, where: steps.RunFolder, tell: progress.Progress) -> None:
    """Upload an instance that the remote store lacks."""
    if where.remote is None:
        return
    side, began = sealed.name.partition(".")[2], time.monotonic()
    with tell.working("upload", side):
        sent = where.remote.share(sealed, _show_bytes(tell))
    if sent and sealed.name.startswith("dump."):
        note = f"{where.remote.url}/{sealed.name}-{sealed.key} (verified after upload)"
        tell.done("upload", side, "run", time.monotonic() - began, note)


def _show_bytes(tell: progress.Progress) -> Callable[[int, int], None]:
    """Return a function that shows the bytes that were moved, where they take a while."""
    return lambda done, total: tell.advance(done, total, "bytes") if total >= _NOTABLE_BYTES else None


def _begin_beside(  # noqa: PLR0913, PLR0917  each is a fact of its own
    beside: Beside, step: steps.Step, following: Instance | None, job: Job, where: steps.RunFolder, done: Mapping[str, Sealed]
) -> None:
    """Begin to make the following instance too, where it may be made while this one is."""
    if following is not None:
        other = steps.resolve(following, job, where, done)
        if at_once.may_follow(step, other, job, done):
            known = dict(done)  # as it is now
            beside.begin(other, job, lambda quiet: _make(other, quiet, where, known))


def _make(step: steps.Step, job: Job, where: steps.RunFolder, done: Mapping[str, Sealed]) -> Sealed:
    stage = step.stage
    try:
        with where.store.making(stage.name, step.key, resumes=stage.resumes) as attempt:
            # Another run may have finished it after this one looked into the store, and before this one had the lock.
            sealed = where.store.find(stage.name, step.key)
            if sealed and not sealed.damaged:
                shutil.rmtree(attempt.folder)  # what is left behind would be kept as a failed attempt
                return sealed
            result = stage.make(job, attempt.folder, {name: done[name].folder for name in stage.needs})
            seal: dict[str, Any] = {**steps.describe_seal(step, job, done), "note": result.note, "seal": result.seal}
            seal |= {"damaged": True} if result.damaged else {}
            return where.store.seal(attempt, seal)
    except PrecflowError as error:
        error.within(f"in stage {stage.name} of {job.config.recipe}")
        log = where.store.failed_folder(stage.name, step.key) / LOG_FILE  # the attempt's folder has got this name by now
        if isinstance(error, SideError) and log.is_file():
            error.within(f"log: {log}")
            if (log.parent / DEVICE_LOGS).is_dir():
                error.within(f"logs of the device: {log.parent / DEVICE_LOGS}")
        raise


def _close(job: Job, where: steps.RunFolder, done: Mapping[str, Sealed], due: Sequence[str], *, kept: float | None) -> Outcome:
    """Publish the report and print how the run ended; ``kept``: the seconds of a run that computed nothing, else ``None``."""
    if (closed := _close_without_sides(job, where, done)) is not None:
        return closed
    if "judge" not in done and curves.NAME not in done:
        dumps = [sealed for name, sealed in done.items() if name.startswith("dump.")]
        place = where.remote.url if where.remote else ""
        lines = [f" sealed   {place or sealed.folder.parent}/{sealed.folder.name}" for sealed in dumps]
        if tuple(job.config.sides) == ("reference",):
            lines += ["", *_describe_continuation(job, "target")]
        if not lines or tuple(job.config.sides) == SIDES:
            lines += unjudged.render(_find_unjudged(job, where, done), columns=count_columns(sys.stderr))
        say("\n".join(lines))
        return Outcome(None, 0, where.folder)
    _, verdict, _ = read_conclusion({name: sealed.folder for name, sealed in done.items()})
    code = EXIT_CODES[verdict.verdict]
    outcome = Outcome(verdict.verdict, code, where.folder)
    if "report" not in done:
        why = verdict.reasons or (f"{verdict.compared} of {verdict.total} records compared",)
        say("\n".join([f" {verdict.verdict.upper()}   {why[0]}", *(f"   {reason}" for reason in why[1:])]))
        say(f" exit {code}, and no report: it is not in stages=[{','.join(job.asked)}]")
    else:
        shown = str(publication.publish(where.folder, done["report"].folder))
        model = read_model(done["report"].folder)
        row = find_furthest_row(model)
        reference = done.get("dump.reference")  # there is none if the reference is a log
        age = "" if reference is None or is_given(reference.folder) else wording.describe_age(time.time() - reference.finished)
        outcome = replace(outcome, report=done["report"].folder)
        if row is not None and model.verdict.verdict == "misaligned":
            outcome = replace(outcome, furthest=wording.used(row.judged.ratio), worst=row.judged.ratio)
        if model.findings:
            first = model.findings[0]
            with speaking(spoken(), collect_translations([first], spoken())):
                told = f"{first.rule} {said(first.title)} ({said(first.certainty)})"
            outcome = replace(outcome, finding=f"{first.rule} {first.title} ({first.certainty})", finding_shown=told)
        if job.ci:
            say(format_outcome(model, report_path=shown, reference_age=age))
        else:
            # A kept report has the seconds of the run that made it; the summary shows those of this one.
            model = replace(model, recipe=_title(job), seconds=model.seconds if kept is None else kept)
            columns, plain = count_columns(sys.stderr), not is_unicode(sys.stderr)
            say(
                render_summary(
                    model,
                    report_path=shown,
                    exit_code=code,
                    columns=columns,
                    ascii_only=plain,
                    kept=kept is not None,
                    reference_age=age,
                )
            )
    if due:
        say(f"\n scope of the second pass   {done[region.NAME].folder / region.SCOPE_FILE}")
        say("\n".join(line for side in due for line in _describe_continuation(job, side)))
    return outcome


def _close_without_sides(job: Job, where: steps.RunFolder, done: Mapping[str, Sealed]) -> Outcome | None:
    """Publish and print what was all of a run though nothing was compared; ``None`` if it was more than that."""
    if set(done) == {scan.NAME}:
        return _close_scan(where, done[scan.NAME])
    if checks_environment_alone(job.config) and "report" in done:
        return _close_check(job, where, done["report"])
    return None


def _close_scan(where: steps.RunFolder, sealed: Sealed) -> Outcome:
    """Publish a scan that was all of a run, and print it."""
    shown, found = publication.publish(where.folder, sealed.folder), scan.read_scan({scan.NAME: sealed.folder})
    assert found is not None
    code, paper = scan.find_exit_code(found), show_scan(found, limit=_SCAN_PLACES)
    paper.line()
    paper.fact("report", str(shown))
    patch = (where.folder / scan.PUBLIC / scan.PATCH).absolute()
    paper.fact("patch", f"in the tree:  git apply {patch}" if found.mended else "")
    paper.line(f"exit {code}")
    say(paper.render(ascii_only=not is_unicode(sys.stderr)))
    return Outcome(None, code, where.folder, sealed.folder)


def _close_check(job: Job, where: steps.RunFolder, report: Sealed) -> Outcome:
    """Publish the page of a check of environments alone and print it."""
    checked = read_check_report(report.folder)
    page = str(publication.publish(where.folder, report.folder))
    say(check_report.render_line(checked, page) if job.ci else check_report.render_screen(checked, page))
    return Outcome(checked.verdict, checked.code, where.folder, report=report.folder)


def _find_unjudged(job: Job, where: steps.RunFolder, done: Mapping[str, Sealed]) -> unjudged.Unjudged:
    """Return what is known of a run that judged nothing."""
    facts = {side: read_plain(sealed.folder / FACTS_FILE) for side in SIDES if (sealed := done.get(f"environment.{side}"))}
    words = [word for word in job.overrides if word.partition("=")[0] not in {"stages", "output"}]
    return unjudged.Unjudged(
        title=_title(job),
        stages=tuple(name for name, state, *_ in job.stages if state != "skipped"),
        store=str(where.store.root),
        facts=facts,
        same=job.config.environment.same,
        next_step=shlex.join(["precflow", *words]),
    )


def _title(job: Job) -> str:
    """Return what the closing screens call a run: its name, if it has one, and its recipe."""
    return f"{job.config.name} ({job.config.recipe})" if job.config.name else job.config.recipe


def publish_job(outcome: Outcome) -> Path | None:
    """Show the report of one of several jobs in a folder of its own, ``jobs/NUMBER``; return the page, or its folder.

    ``None`` if the job made no report.

    Raises:
        StoreError: The run folder cannot be written.
    """
    if outcome.folder is None or outcome.report is None:
        return None
    return publication.publish(outcome.folder / publication.JOBS / str(outcome.run), outcome.report)


def publish(outcome: Outcome) -> None:
    """Show the report of this run in its run folder again, where a later job of the same command line put its own.

    Raises:
        StoreError: The run folder cannot be written.
    """
    if outcome.folder is not None and outcome.report is not None:
        publication.publish(outcome.folder, outcome.report)


def _describe_continuation(job: Job, side: str) -> list[str]:
    """Return the lines that say what to type on the machine of the other side."""
    place = "store" if job.config.store or job.config.site.store else "run folder"
    return [f" Half done. On the machine of the {side}, with the same {place}:", f"   {command_for_side(job, side)}"]

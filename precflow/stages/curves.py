"""Stage ``curves``: curves of a training run, such as its loss, from what each side has left, compared and held to limits.

A side's curve comes from the first of these that there is:

    SIDE.log=FILE          a log that exists already
    curves.NAME.file       a file that the run of this side wrote, as `workload.files` kept it
    curves.NAME.pattern    what the run of this side printed
    (neither)              for the curve `loss` the losses that capture saw, or those that a script printed if these are
                           more; else what the run printed
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.agent.contract import FILES_FOLDER, OUTPUT_FILE
from precflow.config.schema import SIDES, Curve, CurveSource, RunConfig, plain
from precflow.config.sections.curves_section import find_source
from precflow.curves.limits import LIMITS
from precflow.curves.outcome import LOSS, CurveOutcome, HeldStandard, examine, lacking
from precflow.curves.reading import read_curve
from precflow.curves.series import Series, make_series
from precflow.curves.wanted import Wanted
from precflow.dumps.views.joined_ranks import count_ranks
from precflow.errors import CurveError
from precflow.judgement import standards
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Stage, StageResult, is_chosen

NAME = "curves"
OUTCOMES_FILE = "curves.json"
_LEFT = (OUTPUT_FILE, FILES_FOLDER)  # what a run leaves beside its dump


def are_all(config: RunConfig) -> bool:
    """Tell whether curves are all that there is to compare: a side has a log and no dump."""
    return any(_reads_log(config, side) and not getattr(config, side).dump for side in SIDES)


def read_outcomes(needs: Mapping[str, Path]) -> list[CurveOutcome]:
    """Return what is said about each curve, in order of the recipe; none without the stage."""
    return read_value(needs[NAME] / OUTCOMES_FILE, list[CurveOutcome]) if NAME in needs else []


def _reads_log(config: RunConfig, side: str) -> bool:
    return bool(getattr(config, side).log)


def _declare(job: Job) -> Mapping[str, Any]:
    config = job.config
    logs = {side: [keys.file_digest(Path(log).expanduser()) for log in getattr(config, side).log] for side in SIDES}
    given = {side: Path(dump).expanduser() for side in SIDES if (dump := getattr(config, side).dump)}  # the store has no copy
    files = [
        file
        for curve in config.curves.values()
        for folder in job.team.get("standard", ())
        if (file := folder / f"{curve.standard}.yaml").is_file()
    ]
    return {
        "curves": plain(config.curves),
        "logs": logs,
        "given": {
            side: {left: keys.file_digest(path / left) for left in _LEFT if (path / left).exists()}
            for side, path in given.items()
        },
        "standards": [keys.file_digest(resources.directory("conf") / "standard"), *map(keys.file_digest, files)],
        "patterns": keys.file_digest(resources.directory("conf") / "curve"),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    outcomes = [_examine(name, curve, job, needs) for name, curve in job.config.curves.items()]
    write_value(folder / OUTCOMES_FILE, outcomes)
    return StageResult(note="; ".join(f"{one.name} {one.verdict}" for one in outcomes))


def _examine(name: str, curve: Curve, job: Job, needs: Mapping[str, Path]) -> CurveOutcome:
    read = []
    for side in SIDES:
        try:
            read.append(_read(side, name, find_source(curve, side), job, needs))
        except CurveError as error:  # noqa: PERF203  of two sides
            if job.side(side).log:  # nothing but this log is compared, so nothing can be said without it
                raise
            return lacking(name, error.message)
    (reference, *repeats), (target, *_) = read
    standard = standards.load(curve.standard, job.team.get("standard", ())) if curve.standard else None
    return examine(
        name,
        reference,
        target,
        steps=curve.steps,
        limits={limit: value for limit in LIMITS if (value := getattr(curve, limit)) is not None},
        standard=HeldStandard(standard.dated, standard.losses) if standard and standard.losses else None,
        repeats=repeats,
    )


def _read(side: str, name: str, source: CurveSource, job: Job, needs: Mapping[str, Path]) -> list[Series]:
    """Return the curve of a side, and of further runs of it.

    Raises:
        CurveError: The side does not have it.
    """
    wanted = Wanted(name, source.pattern, source.column, source.step_column, side)
    logs = [Path(log).expanduser() for log in job.side(side).log]
    if logs:
        return [read_curve(log, wanted, f"the {side}'s {log.name}") for log in logs]
    dump = open_dump(needs[f"dump.{side}"])
    folder = dump.path  # of a dump that the user gives, its own
    if source.file:
        kept = _find_file(folder / FILES_FOLDER, source.file, side, name)
        return [read_curve(kept, wanted, f"the {side}'s {source.file}")]
    losses = dump.header.loss_of_step
    if name == LOSS and losses and not (source.pattern or source.column):
        seen = make_series(list(losses), list(losses.values()), source=f"the losses in the {side}'s dump")
        if _have_other_ranks(needs):  # a rank prints the loss of its own part; the dump has the mean of all ranks
            return [seen]
        printed = _find_printed(folder / OUTPUT_FILE, wanted, side)
        return [printed if printed is not None and len(printed) > len(seen) else seen]
    if not (folder / OUTPUT_FILE).is_file():
        raise CurveError(
            f"the {side} has no curve {name}: its dump holds no losses, and nothing that its run printed:"
            f" {side}.log=FILE gives it, ~curves.{name} does without",
        )
    return [read_curve(folder / OUTPUT_FILE, wanted, f"what the {side} printed")]


def _have_other_ranks(needs: Mapping[str, Path]) -> bool:
    """Tell whether one side ran as more ranks than the other."""
    dumps = [needs[name] for side in SIDES if (name := f"dump.{side}") in needs]
    return len({count_ranks(open_dump(dump)) for dump in dumps}) > 1


def _find_printed(path: Path, wanted: Wanted, side: str) -> Series | None:
    """Return the curve that a script printed; ``None`` if it printed none. Capture sees the losses of recorded steps alone."""
    try:
        return read_curve(path, wanted, f"what the {side} printed") if path.is_file() else None
    except CurveError:
        return None


def _find_file(folder: Path, name: str, side: str, curve: str) -> Path:
    if (folder / name).exists():
        return folder / name
    kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    raise CurveError(
        f"the run of the {side} has left no file {name} for the curve {curve}; kept are: {', '.join(kept[:10]) or 'none'}",
        next_step=f"keep it: workload.files=[{name}]",
    )


STAGE = Stage(
    name="curves",
    place=30,
    reads=(),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if are_all(config) or (config.curves and is_chosen(config, NAME)) else (),
    reads_also=lambda config, _: tuple(f"dump.{side}" for side in SIDES if not _reads_log(config, side)),
    without_records=True,
    reads_left=_LEFT,
)

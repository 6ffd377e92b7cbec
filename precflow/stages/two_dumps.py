"""Compares two dumps that exist already, without a run folder: by the stages of a run, in a folder that is removed again.

So ``precflow compare``, ``precflow.compare`` and the recipe ``compare_dumps`` cannot come to other results.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from precflow.comparison.compare import compare
from precflow.config.schema import SAME_AT_START, RunConfig, Side, Tolerance
from precflow.dumps.lookup import FoundRecord
from precflow.dumps.protocol import Dump
from precflow.dumps.views.derived import Excerpt
from precflow.dumps.views.paired import see_through_rules
from precflow.dumps.views.same_start import INPUTS
from precflow.environment.reproduction import find_blockers
from precflow.errors import ConfigError
from precflow.metrics import METRICS
from precflow.report.model import ReportModel, Row
from precflow.sides.launch import Agents
from precflow.stages import introduced, registry
from precflow.stages.artifacts import cache_reads
from precflow.stages.determinism import Reproduction, read_reproduction
from precflow.stages.dump import keep_open
from precflow.stages.job import Job
from precflow.stages.judge import judge_pair
from precflow.stages.report import gather_model

_REPORT = "report"  # the one stage that is not made: it writes the files of a run


def show_one_record(dump: Dump, found: FoundRecord) -> Dump:
    """Return a dump of one record alone. It becomes the only output of the only call, so that inputs can be compared too."""
    return Excerpt(dump, [msgspec.structs.replace(found.call, outputs=(found.record,))])


def compare_record(reference: Dump, target: Dump, left: FoundRecord, right: FoundRecord) -> Row:
    """Measure and judge one record of both sides, an input as well as an output.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        left: The record on the reference.
        right: The same on the target.
    """
    sides = show_one_record(reference, left), show_one_record(target, right)
    measures = compare(*sides)
    judged, _ = judge_pair(make_job(reference, target), {}, *sides, measures)
    return Row(measures[0], judged[0], "unknown")


def compare_dumps(  # noqa: PLR0913  each is a fact of its own, and all but two go by name
    reference: Dump,
    target: Dump,
    *,
    command: str,
    tolerance: Tolerance = RunConfig().tolerance,  # noqa: B008  frozen
    same: Sequence[str] = SAME_AT_START,
    team: Sequence[Path] = (),
    evaluates: bool = True,
) -> ReportModel:
    """Compare and judge two dumps as the recipe ``compare_dumps`` does.

    Args:
        reference: Dump of the reference; relative errors are relative to its values.
        target: Dump of the target.
        command: The command line as the user may type it again.
        tolerance: The limits.
        same: What has to be the same on both sides: ``weights``, ``inputs``.
        team: Folders with rules besides the shipped ones.
        evaluates: Calls whose tensors were kept are computed again in float64, which starts an agent here.

    Raises:
        ConfigError: They are one dump.
        DumpError: A dump cannot be read.
        SideError: The agent did not finish.
    """
    started = time.monotonic()
    if reference.path.resolve() == target.path.resolve():
        raise ConfigError(
            f"both sides are the dump {reference.path}: a dump always agrees with itself", next_step="name two dumps"
        )
    job = make_job(reference, target, command=command, tolerance=tolerance, same=same, team=team)
    every = registry.instances(job.config)
    if not evaluates:
        wanted = tuple(dict.fromkeys(stage.kind for stage in every if stage.kind != introduced.NAME))
        job = replace(job, config=replace(job.config, stages=wanted))
        every = registry.instances(job.config)
    with tempfile.TemporaryDirectory(prefix="precflow-compare-") as scratch, closing(Agents()) as agents, cache_reads():
        job = replace(job, agents=agents)
        keep_open(reference)
        keep_open(target)
        made: dict[str, Path] = {}
        for stage in every:
            if stage.name == _REPORT:
                continue
            folder = Path(scratch) / stage.name
            folder.mkdir()
            stage.make(job, folder, {name: made[name] for name in stage.needs})
            made[stage.name] = folder
        model = gather_model(job, made, detailed=False)
        reproduction = read_reproduction(made["determinism"])
    recipes = filter(None, (dump.header.recipe for dump in (reference, target)))
    return replace(
        model,
        verdict=replace(
            model.verdict,
            reasons=(*model.verdict.reasons, *_suggest_comparing(reproduction, reference, target, same, command)),
        ),
        recipe=" and ".join(dict.fromkeys(recipes)) or "two dumps",
        columns=tuple(METRICS),
        seconds=round(time.monotonic() - started, 1),
    )


def _suggest_comparing(
    reproduction: Reproduction, reference: Dump, target: Dump, same: Sequence[str], command: str
) -> list[str]:
    """Say how to compare nevertheless if only other weights or inputs stand in the way."""
    if not (reproduction.blockers or reproduction.parted):
        return []
    here, there = (dump.header for dump in see_through_rules(reference, target, (), same))
    left = [what for what in same if what not in {"weights", INPUTS} or not find_blockers(here, there, [what])]
    if len(left) == len(same) or find_blockers(here, there, left):
        return []
    how = f"--same {','.join(left) or 'nothing'}" if command else f"same={tuple(left)}"
    return [f"{how} compares them nevertheless, if they differ on purpose"]


def make_job(  # noqa: PLR0913  each is a fact of its own, and all but two go by name
    reference: Dump,
    target: Dump,
    *,
    command: str = "",
    tolerance: Tolerance = RunConfig().tolerance,  # noqa: B008  frozen
    same: Sequence[str] = SAME_AT_START,
    team: Sequence[Path] = (),
) -> Job:
    """Return the job of two dumps: its recipe is what ``compare_dumps`` says, see :func:`compare_dumps`."""
    plain = RunConfig()
    config = replace(
        plain,
        recipe="compare_dumps",
        about=replace(plain.about, title="Two dumps"),
        reference=Side(dump=str(reference.path)),
        target=Side(dump=str(target.path)),
        tolerance=tolerance,
        environment=replace(plain.environment, same=tuple(same)),
    )
    return Job(
        config=config,
        command=command,
        yaml="",
        ci=False,
        trusted=(),
        import_paths=(),
        cache=Path(),
        team={"rule": tuple(team)} if team else {},
    )

"""Stage ``report``: everything into one typed model, and from it HTML, Markdown, JSON and JUnit."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow import __version__, keys, resources
from precflow.agent import redaction
from precflow.config.plain import plain
from precflow.diagnosis.findings import Finding
from precflow.dumps.header import Header
from precflow.environment.differences import differences
from precflow.report.formats import write
from precflow.report.highlights import keep_most_important
from precflow.report.model import ReportModel, Row, SideView, StageView
from precflow.stages.advise import read_findings
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.commands import changed, difference
from precflow.stages.compare import read_measures
from precflow.stages.details import worst_details
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Made, Stage
from precflow.stages.judge import read_judged, read_verdict
from precflow.stages.localize import read_region
from precflow.stages.passes import latest, newest, open_evidence, second
from precflow.stages.region import NAME, read_scope

MODEL_FILE = "model.json"
PUBLIC = "public"
ROWS_KEPT = 1000  # in the model; the files of the report have more, measures and statuses have all


def read_model(folder: Path) -> ReportModel:
    """Return the model of a sealed report; of very many rows those that matter most, the others are counted."""
    return read_value(folder / MODEL_FILE, ReportModel)


def _declare(job: Job) -> Mapping[str, Any]:
    return {
        "report": plain(job.config.report),
        "title": job.config.about.title,
        "templates": keys.file_digest(resources.directory("templates")),
        "recipe": job.yaml,
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    model = _model(job, needs)
    write_value(folder / MODEL_FILE, keep_most_important(replace(model, region=replace(model.region, roles=None)), ROWS_KEPT))
    (folder / PUBLIC).mkdir()
    written = write(model, folder / PUBLIC, job.config.report.formats)
    return Made(note=", ".join(path.name for path in written))


def _model(job: Job, needs: Mapping[str, Path]) -> ReportModel:
    reference, target = open_dump(needs["dump.reference"]), open_dump(needs["dump.target"])
    region = read_region(latest(needs, "localize"))
    judged = read_judged(latest(needs, "judge"))
    roles = region.roles or {}
    measures = read_measures(latest(needs, "compare"))
    headers = (("reference", reference.header), ("target", target.header))
    rows = tuple(
        Row(measure, status, roles.get(measure.record, "unknown")) for measure, status in zip(measures, judged, strict=True)
    )
    return ReportModel(
        recipe=job.config.recipe,
        title=job.config.about.title,
        run=job.run,
        finished=datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        precflow=__version__,
        command=_homeless(job.command),
        sides=tuple(side_view(name, header) for name, header in headers),
        verdict=read_verdict(latest(needs, "judge")),
        region=replace(region, notes=(*_passes(needs), *region.notes)),
        findings=tuple(_with_command(job, finding) for finding in read_findings(needs["advise"])),
        rows=rows,
        differences=differences(reference.header.facts, target.header.facts),
        stages=tuple(
            StageView(name=name, state=state, seconds=seconds, note=note) for name, state, seconds, note in job.stages
        ),
        recipe_yaml=_homeless(job.yaml),
        columns=tuple(job.config.report.columns),
        seconds=round(sum(seconds for _, _, seconds, _ in job.stages), 1),
        emulated=any(header.device.emulated for _, header in headers),
        emulation=str(target.header.emulate.get("name", "")),
        details=worst_details(open_evidence(needs, "reference"), open_evidence(needs, "target"), rows),
    )


def _with_command(job: Job, finding: Finding) -> Finding:
    if not finding.try_it:
        return finding
    return replace(finding, try_it=_homeless(changed(job, finding.try_it)), change=_homeless(difference(job, finding.try_it)))


def _passes(needs: Mapping[str, Path]) -> list[str]:
    """Say what the second pass of escalating capture was about, or why there was none."""
    if NAME not in needs:
        return []
    scope = read_scope(needs[NAME])
    if not scope.needed:
        return [scope.why]
    return [f"the second pass {'has not run yet' if second('judge') not in needs else 'has run'}: {scope.why}"]


def side_view(name: str, header: Header) -> SideView:
    """Return one side as a report shows it."""
    facts = dict(_flat(header.facts))
    device = header.device
    words = [device.kind, device.description, _version("torch", facts), _version("torch_npu", facts), header.dtype]
    return SideView(
        side=name,
        title=", ".join(word for word in words if word) or "unknown: its dump has no header",
        emulated=device.emulated,
        device=device.name or "unknown device",  # of a dump without its header
        dtype=header.dtype,
        facts=facts,
    )


def _homeless(text: str) -> str:
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _version(package: str, facts: Mapping[str, str]) -> str:
    version = facts.get(f"{package}.version") or facts.get(f"packages.{package}", "")
    return f"{package} {version}" if version else ""


def _flat(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, leaf in keys.flatten(value):
        yield key, redaction.text(str(leaf))


def stage(*, escalating: bool, again: bool) -> Stage:
    """Return the stage; ``escalating`` where a region was looked for, ``again`` where there is a second pass."""
    needs = newest(("dump.reference", "dump.target", "compare", "judge", "localize"), again=again)
    return Stage(name="report", needs=(*needs, "advise", *([NAME] if escalating else [])), declare=_declare, make=_make)

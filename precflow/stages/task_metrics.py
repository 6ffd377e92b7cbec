"""Stage ``task_metrics``: numbers of what the model is for, read from the outputs of both dumps and held to their limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.config.schema import RunConfig, plain
from precflow.config.sections.task_metrics_section import kind_of
from precflow.config.trust import TARGET
from precflow.dumps.protocol import Dump
from precflow.dumps.requests import gives_choices
from precflow.environment import code_digests
from precflow.stages.artifacts import read_once, read_value, write_value
from precflow.stages.compare import locate_installed
from precflow.stages.determinism import Reproduction, read_reproduction
from precflow.stages.dump import list_written
from precflow.stages.job import Job, Stage, StageResult, is_chosen
from precflow.stages.second_pass.passes import latest, open_both
from precflow.task import own_function
from precflow.task.outcome import NOT_COMPUTED, TaskOutcome, examine, summarize

NAME = "task_metrics"
OUTCOMES_FILE = "task_metrics.json"
_BLOCKED = "the sides were not given the same, so that no output was compared"


def read_task_metrics(needs: Mapping[str, Path]) -> list[TaskOutcome]:
    """Return what is said about each metric, in order of the recipe; none without the stage."""
    return read_once(_read, needs[NAME] / OUTCOMES_FILE) if NAME in needs else []


def _read(path: Path) -> list[TaskOutcome]:
    return read_value(path, list[TaskOutcome])


def is_planned(config: RunConfig) -> bool:
    """Tell whether a recipe has task metrics."""
    return bool(config.task_metrics) and is_chosen(config, NAME)


def examine_dumps(job: Job, reference: Dump, target: Dump) -> list[TaskOutcome]:
    """Return what is said about each metric of a recipe, of two dumps; nothing without the stage."""
    if not is_planned(job.config):
        return []
    metrics = job.config.task_metrics
    functions = {
        name: own_function.load(name, metric.function, job.trusted, job.import_paths)
        for name, metric in metrics.items()
        if metric.function
    }
    forced = gives_choices(job.config)
    return [
        examine(name, metric, reference, target, function=functions.get(name), forced=forced)
        for name, metric in metrics.items()
    ]


def list_read(config: RunConfig) -> tuple[list[str], bool]:
    """Return the modules that the metrics of a recipe read, and whether any reads the output of an operator."""
    outputs = [metric.output for metric in config.task_metrics.values()] if is_planned(config) else []
    places = [output.partition(" / ") for output in outputs]
    return list(dict.fromkeys(module for module, _, _ in places)), any(operator for _, _, operator in places)


def declare(job: Job) -> Mapping[str, Any]:
    """Return what the metrics of a recipe depend on; nothing without the stage."""
    if not is_planned(job.config):
        return {}
    metrics = plain(job.config.task_metrics)
    functions = [metric.function[TARGET] for metric in job.config.task_metrics.values() if metric.function]
    packages = {str(function).partition(".")[0] for function in functions}
    code = code_digests.digest_packages(packages, job.import_paths, locate_installed(packages), written=list_written(job))
    given = [text for metric in job.config.task_metrics.values() for text in (metric.tokenizer, metric.weights) if text]
    read = sorted(keys.file_digest(Path(text)) for text in given if Path(text).exists())  # if not, it is told later
    return {
        "task_metrics": metrics,
        **({"read": read} if read else {}),
        "forced": gives_choices(job.config),
        **({"code": code} if packages else {}),
        **({"pairing": plain(job.config.pairing)} if job.config.pairing.rules else {}),
    }


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    metrics = job.config.task_metrics
    reproduction = read_reproduction(latest(needs, "determinism")) if "determinism" in needs else Reproduction()
    if reproduction.blockers:
        outcomes = [
            TaskOutcome(name, kind_of(name, metric), metric.output, NOT_COMPUTED, why=_BLOCKED, limit=metric.limit)
            for name, metric in metrics.items()
        ]
    else:
        outcomes = examine_dumps(job, *open_both(needs, job))
    write_value(folder / OUTCOMES_FILE, outcomes)
    return StageResult(note="; ".join(f"{one.name} {summarize(one)}" for one in outcomes).replace("   ", ", "))


STAGE = Stage(
    name="task_metrics",
    place=228,
    reads=("dump", "determinism"),
    declare=declare,
    make=_make,
    parts=lambda config: ("",) if is_planned(config) else (),
)

"""What a run would do: which stage instances it would keep, make or miss, and which changed value is the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from precflow.config.schema import Bytes
from precflow.config.units import format_value
from precflow.environment.variables import describe_misspelt
from precflow.run.jobs import make_job
from precflow.run.sizes import describe_sizes, estimate_sizes
from precflow.run.steps import Agenda, RunFolder, Step, locate_run, refuse_other_recipe, resolve, use_what_is_there
from precflow.run.store import Sealed
from precflow.stages.job import Job
from precflow.stages.second_pass import region

if TYPE_CHECKING:
    from precflow.config.composition import Composed


_TITLES = ("stage", "side", "state", "because", "time", "disk")


@dataclass(frozen=True)
class Plan:
    """All steps of a recipe, and what is known of their cost.

    Attributes:
        recipe: Name.
        command: Overrides as they were typed.
        where: Run folder and store.
        steps: In order of need.
        costs: Instance name -> ``(seconds, bytes)`` that the last one like it took.
        notes: What a reader should know.
    """

    recipe: str
    command: str
    where: RunFolder
    steps: tuple[Step, ...]
    costs: Mapping[str, tuple[float, int]]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``; an unknown size is ``None``."""
        rows = [
            {
                "stage": step.stage.label,
                "side": step.stage.side,
                "state": step.state,
                "because": step.because,
                "key": step.key,
                "bytes": self.costs[step.stage.name][1] or None,
            }
            for step in self.steps
        ]
        return {"recipe": self.recipe, "folder": str(self.where.folder), "stages": rows, "notes": list(self.notes)}


def build_plan(composed: Composed, *, sizes: bool = False, say: Callable[[str], None] = lambda _: None) -> Plan:
    """Return the plan of a composed recipe; nothing is computed.

    Nothing is written either, with one exception: if the size of a dump is wanted and no earlier dump of the workload shows it,
    the workload runs once without values, and the store keeps its shapes.

    Args:
        composed: The recipe.
        sizes: Estimate the sizes of dumps, even if the recipe has no budget to compare them with.
        say: Called with a short text while the workload runs without values.
    """
    job = replace(make_job(composed, command=""), say=say)
    where = locate_run(job.config)
    refuse_other_recipe(job.config, where)
    job = use_what_is_there(job, where)
    done: dict[str, Sealed] = {}
    steps = []
    agenda = Agenda(job, where)
    for stage in agenda:
        step = resolve(stage, job, where, done)
        if step.state == "missing":
            agenda.forgo(stage)
        if step.sealed:  # as in a run: a region that is kept from before may say that no second pass is needed
            # Of what lies in a remote store only the small region is downloaded: it says what comes after it.
            sealed = where.bring(step.sealed) if stage.name == region.NAME else step.sealed
            done[stage.name] = sealed
            agenda.learn(stage, sealed)
        # Whether there is a second pass, and what it records, is known only after the first one.
        undecided = region.NAME in stage.scope_needs and region.NAME not in done
        steps.append(replace(step, because="decided by pass 1") if undecided else step)
    budget = job.config.capture.budget
    estimate = estimate_sizes(steps, job, where, done, rehearse=sizes or bool(budget))
    return Plan(
        recipe=job.config.recipe,
        command=" ".join(composed.overrides),
        where=where,
        steps=tuple(steps),
        costs={step.stage.name: _estimate_cost(step, where, estimate.bytes) for step in steps},
        notes=(*_describe_target(job), *describe_sizes(steps, estimate, job, where), *_describe_second_pass(job, done)),
    )


def render_plan(plan: Plan, *, ascii_only: bool = False) -> str:
    """Return the plan as text: one row per stage, the total time, and the notes."""
    rows = [_format_row(step, plan.costs[step.stage.name]) for step in plan.steps]
    widths = [max(len(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    lines = [f" precflow plan {plan.command}".rstrip(), f" run folder {plan.where.folder}   (nothing is computed by this)", ""]
    lines += [
        " " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_TITLES, *rows)
    ]
    seconds = sum(plan.costs[step.stage.name][0] for step in plan.steps if step.state == "run")
    total = (
        f"total about {seconds:.0f} s where it ran before" if seconds else "nothing like it ran here before: no time to tell"
    )
    lines += ["", f" {total}", *(f" {note}" for note in plan.notes)]
    text = "\n".join(lines)
    return text.encode("ascii", "replace").decode() if ascii_only else text


def _format_row(step: Step, cost: tuple[float, int]) -> tuple[str, ...]:
    seconds, size = cost
    because = step.because if len(step.because) <= 70 else step.because[:67] + "..."
    shown = f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e3:.1f} kB"
    return (
        step.stage.label,
        step.stage.side or "-",
        step.state,
        because or (f"in {step.sealed.upload.partition(': ')[0]}" if step.sealed and step.sealed.upload else "-"),
        f"{seconds:.1f} s" if seconds else "-",
        f"{'about ' * (step.state == 'run')}{shown}" if size else "-",
    )


def _estimate_cost(step: Step, where: RunFolder, sizes: Mapping[str, int]) -> tuple[float, int]:
    """Return seconds and bytes of a step: its estimated size if there is one, else what the last such instance took.

    0 means unknown. The seconds of a kept instance are 0.
    """
    like = step.sealed or next(iter(where.store.list_sealed(step.stage.name)), None)
    seconds = 0.0 if like is None or step.state == "kept" else like.seconds
    if step.stage.name in sizes:
        return seconds, sizes[step.stage.name]
    to_dump = step.stage.kind == "dump" and step.state == "run"  # a dump of other records says nothing about the size of this
    return seconds, 0 if like is None or to_dump else like.bytes


def _describe_second_pass(job: Job, done: Mapping[str, Sealed]) -> list[str]:
    """Return a note on the second pass of escalating capture: what pass 1 decided, or that it has not decided yet."""
    if not region.escalates(job.config):
        return []
    if region.NAME in done:
        return [f"Pass 2 of escalating capture: {region.read_scope(done[region.NAME].folder).why}"]
    budget = format_value(Bytes, job.config.capture.budget)
    most = f"at most {budget} (capture.budget)" if budget else "without a bound: capture.budget sets one"
    return [f"Pass 2 of escalating capture is decided by pass 1: {most}."]


def _describe_target(job: Job) -> list[str]:
    """Return notes on the device and the fault of the target, and on misspelt environment variables."""
    config, notes = job.config, []
    if len(config.target.device) > 1:
        notes.append(f"target.device: {', '.join(config.target.device)}; the first that is here")
    if "emulated" in config.target.device:
        notes.append("where it is EMULATED, every number says so")
    if config.emulate.name:
        notes.append(f"target is emulated with {config.emulate.name}")
    return [*notes, *(f"warning: {text}" for text in describe_misspelt(config, os.environ))]

"""What a run would do: each stage instance kept, run or missing, and the value that makes the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow import __version__, keys
from precflow.config.schema import RunConfig
from precflow.errors import ConfigError, StoreError
from precflow.run.jobs import make_job
from precflow.run.manifest import Manifest
from precflow.run.store import Sealed, Store
from precflow.stages import registry
from precflow.stages.job import Job, Stage

if TYPE_CHECKING:
    from precflow.config.composition import Composed

_DECLARED_DIGITS = 10
_PLACE_DIGITS = 6


@dataclass(frozen=True)
class Place:
    """Where a recipe's runs and values are.

    Attributes:
        folder: The run folder, ``runs/RECIPE``.
        store: Its values; elsewhere where the recipe or the site names a store.
        manifest: Its history.
    """

    folder: Path
    store: Store
    manifest: Manifest


@dataclass(frozen=True)
class Step:
    """One stage instance in a plan.

    Attributes:
        stage: The stage.
        state: ``kept``, ``run``, ``missing`` (a side that does not run here and was never made).
        key: Its key; ``""`` where it depends on something that has not run.
        because: Why it would run, ``""`` where it is kept.
        sealed: The instance, where it is kept.
    """

    stage: Stage
    state: str
    key: str
    because: str = ""
    sealed: Sealed | None = None


@dataclass(frozen=True)
class Plan:
    """All steps of a recipe, and what is known of their cost.

    Attributes:
        recipe: Name.
        command: Overrides as they were typed.
        place: Run folder and store.
        steps: In order of need.
        costs: Instance name -> ``(seconds, bytes)`` that the last one like it took.
        notes: What a reader should know.
    """

    recipe: str
    command: str
    place: Place
    steps: tuple[Step, ...]
    costs: Mapping[str, tuple[float, int]]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        rows = [
            {"stage": step.stage.kind, "side": step.stage.side, "state": step.state, "because": step.because, "key": step.key}
            for step in self.steps
        ]
        return {"recipe": self.recipe, "folder": str(self.place.folder), "stages": rows, "notes": list(self.notes)}


def place(config: RunConfig) -> Place:
    """Return where this recipe's runs and values are.

    Raises:
        ConfigError: The store is an address of a kind that this version does not know.
    """
    folder = Path(config.runs).expanduser() / config.recipe
    named = config.store or config.site.store
    if "://" in named:
        raise ConfigError(
            f"store={named}: object stores are not available in precflow {__version__}", next_step="name a folder: store=DIR"
        )
    root = Path(named).expanduser() / config.recipe if named else folder / "store"
    return Place(folder=folder, store=Store(root), manifest=Manifest(folder))


def wanted(config: RunConfig) -> list[Stage]:
    """Return the stage instances that this run is about, in order of need.

    A side that does not run here brings only its dump; with the reference alone there is nothing to judge yet.
    """
    every = registry.instances(config)
    here = [stage for stage in every if not stage.side or stage.side in config.sides or stage.kind == "dump"]
    if tuple(config.sides) == ("reference",) and not config.target.dump:
        here = [stage for stage in here if stage.side == "reference"]
    if config.stages:
        here = [stage for stage in here if stage.kind in config.stages]
    return here


def resolve(stage: Stage, job: Job, where: Place, done: Mapping[str, Sealed]) -> Step:
    """Decide about one stage instance.

    Args:
        stage: The instance.
        job: The recipe.
        where: Run folder and store.
        done: Sealed instances by name; what a stage needs and is not here has to run first.
    """
    if stage.side and stage.side not in job.config.sides and stage.kind == "dump" and not job.side(stage.side).dump:
        return _elsewhere(stage, job, where)
    waiting = next((name for name in stage.needs if name not in done), "")
    if waiting:
        return Step(stage, "run", "", because=waiting)
    declared = _declared(stage, job)
    key = _key(stage, job, declared, done)
    sealed = where.store.find(stage.name, key)
    if sealed:
        return Step(stage, "kept", key, sealed=sealed)
    return Step(stage, "run", key, because=_because(stage, where, declared, done))


def seal_of(step: Step, job: Job, done: Mapping[str, Sealed]) -> dict[str, Any]:
    """Return what the store is to write beside a finished instance."""
    return {
        "name": step.stage.name,
        "key": step.key,
        "declared": _declared(step.stage, job),
        "needs": {name: done[name].seal for name in step.stage.needs},
    }


def build_plan(composed: Composed) -> Plan:
    """Return the plan of a composed recipe; nothing is computed and nothing is written."""
    job = make_job(composed, command="")
    where = place(job.config)
    done: dict[str, Sealed] = {}
    steps = []
    for stage in wanted(job.config):
        step = resolve(stage, job, where, done)
        if step.sealed:
            done[stage.name] = step.sealed
        steps.append(step)
    return Plan(
        recipe=job.config.recipe,
        command=" ".join(composed.overrides),
        place=where,
        steps=tuple(steps),
        costs={step.stage.name: _cost(step, where) for step in steps},
        notes=tuple(_notes(job)),
    )


def _elsewhere(stage: Stage, job: Job, where: Place) -> Step:
    declared = _declared(stage, job)
    prefix = _declared_key(stage, declared)
    found = where.store.named(stage.name, prefix)
    if found:
        return Step(stage, "kept", found[0].key, sealed=found[0])
    others = where.store.named(stage.name)
    if not others:
        return Step(stage, "missing", prefix, because=f"no {stage.side} was sealed in {where.store.root}")
    differing = _shown(keys.changes(others[0].declared, declared))
    return Step(stage, "missing", prefix, because=f"the {stage.side} in {where.store.root} is of another recipe: {differing}")


def _declared(stage: Stage, job: Job) -> dict[str, Any]:
    return {"version": stage.version, **stage.declare(job)}


def _declared_key(stage: Stage, declared: Mapping[str, Any]) -> str:
    return keys.digest([stage.name, declared])[:_DECLARED_DIGITS]


def _key(stage: Stage, job: Job, declared: Mapping[str, Any], done: Mapping[str, Sealed]) -> str:
    if stage.place is None:
        return keys.digest([stage.name, declared, {name: done[name].seal for name in stage.needs}])[:_DECLARED_DIGITS]
    here = keys.digest([stage.place(job), {name: done[name].key for name in stage.needs}])
    return f"{_declared_key(stage, declared)}-{here[:_PLACE_DIGITS]}"


def _because(stage: Stage, where: Place, declared: Mapping[str, Any], done: Mapping[str, Sealed]) -> str:
    before = next((one for one in where.store.named(stage.name) if one.key == where.manifest.last(stage.name)), None)
    if before is None:
        return "never made" if not where.store.named(stage.name) else "not made with these values"
    differing = keys.changes(before.declared, declared)
    if differing:
        return _shown(differing)
    changed = [name for name in stage.needs if before.needs.get(name) != done[name].seal]
    return ", ".join(changed) if changed else "the machine or the code changed"


def _shown(differing: Sequence[tuple[str, Any, Any]]) -> str:
    first = ", ".join(f"{key} {_word(old)} -> {_word(new)}" for key, old, new in differing[:2])
    return first + (f" and {len(differing) - 2} more" if len(differing) > 2 else "")


def _word(value: Any) -> str:
    text = "(unset)" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _cost(step: Step, where: Place) -> tuple[float, int]:
    like = step.sealed or next(iter(where.store.named(step.stage.name)), None)
    return (0.0, 0) if like is None else (0.0 if step.state == "kept" else like.seconds, like.bytes)


def _notes(job: Job) -> list[str]:
    config = job.config
    emulated = "emulated" in config.target.device
    notes = [
        f"target.device: {', '.join(config.target.device)}; the first that is here" if len(config.target.device) > 1 else ""
    ]
    notes.append("where it is EMULATED, every number says so" if emulated else "")
    notes.append(f"target is emulated with {config.emulate.name}" if config.emulate.name else "")
    return [note for note in notes if note]


def check_stages(config: RunConfig) -> None:
    """Refuse names in ``stages`` that do not exist.

    Raises:
        ConfigError: A name is unknown.
    """
    unknown = [name for name in config.stages if name not in registry.NAMES]
    if unknown:
        raise ConfigError(f"stages: no stage {', '.join(unknown)}; there are {', '.join(registry.NAMES)}")


def missing_side(step: Step) -> StoreError:
    """Return the error for a side that was looked up and not found."""
    side = step.stage.side
    return StoreError(
        f"no sealed {side} dump for this recipe: {step.because}",
        next_step=f"make it where the {side} runs, with the same recipe:  precflow +recipe=... sides=[{side}] store=DIR",
    )


def render_plan(plan: Plan, *, ascii_only: bool = False) -> str:
    """Return screen E: a row a stage, then what is needed and what is emulated."""
    rows = [_row(step, plan.costs[step.stage.name]) for step in plan.steps]
    widths = [max(len(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    lines = [f" precflow plan {plan.command}".rstrip(), f" run folder {plan.place.folder}   (nothing is computed by this)", ""]
    lines += [
        " " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_TITLES, *rows)
    ]
    seconds = sum(plan.costs[step.stage.name][0] for step in plan.steps if step.state == "run")
    lines += [
        "",
        f" total about {seconds:.0f} s where it ran before" if seconds else " nothing like it ran here before: no time to tell",
    ]
    lines += [f" {note}" for note in plan.notes]
    text = "\n".join(lines)
    return text.encode("ascii", "replace").decode() if ascii_only else text


_TITLES = ("stage", "side", "state", "because", "time", "disk")


def _row(step: Step, cost: tuple[float, int]) -> tuple[str, ...]:
    seconds, size = cost
    because = step.because if len(step.because) <= 70 else step.because[:67] + "..."
    return (
        step.stage.kind,
        step.stage.side or "-",
        step.state,
        because or "-",
        f"{seconds:.1f} s" if seconds else "-",
        f"{size / 1e6:.1f} MB" if size else "-",
    )

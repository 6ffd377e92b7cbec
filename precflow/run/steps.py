"""Stage instances of a recipe in a run folder: which are wanted, which are kept, and by which key."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow import __version__, keys
from precflow.agent import redaction
from precflow.config.schema import RunConfig
from precflow.errors import ConfigError, StoreError
from precflow.run.manifest import Manifest
from precflow.run.store import Sealed, Store
from precflow.stages import registry
from precflow.stages.job import Job, Stage

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


def wanted(config: RunConfig, *, second_pass: bool = True, met: bool = False) -> list[Stage]:
    """Return the stage instances that this run is about, in order of need.

    A side that does not run here brings only its dump; with the reference alone there is nothing to judge yet.

    Args:
        config: The recipe.
        second_pass: What its region asks for, once that is known.
        met: The target was here already (see :func:`met`), so that the reference alone can be judged.
    """
    every = registry.instances(config, second_pass=second_pass)
    here = [stage for stage in every if not stage.side or stage.side in config.sides or stage.kind == "dump"]
    if tuple(config.sides) == ("reference",) and not config.target.dump and not met:
        here = [stage for stage in here if stage.side == "reference" and not stage.told_by]
    if config.stages:
        here = [stage for stage in here if stage.kind in config.stages]
    return here


def met(job: Job, where: Place) -> bool:
    """Tell whether this is the reference's turn again: its target has been made elsewhere, and a second pass may be due."""
    config = job.config
    if tuple(config.sides) != ("reference",) or config.target.dump or not registry.escalates(config):
        return False
    target = next(stage for stage in registry.instances(config) if stage.name == "dump.target")
    return resolve(target, job, where, {}).state == "kept"


def check_stages(config: RunConfig) -> None:
    """Refuse names in ``stages`` that do not exist.

    Raises:
        ConfigError: A name is unknown.
    """
    unknown = [name for name in config.stages if name not in registry.NAMES]
    if unknown:
        raise ConfigError(f"stages: no stage {', '.join(unknown)}; there are {', '.join(registry.NAMES)}")


def resolve(stage: Stage, job: Job, where: Place, done: Mapping[str, Sealed]) -> Step:
    """Decide about one stage instance.

    Args:
        stage: The instance.
        job: The recipe.
        where: Run folder and store.
        done: Sealed instances by name; what a stage needs and is not here has to run first.
    """
    elsewhere = stage.side and stage.side not in job.config.sides and stage.kind == "dump" and not job.side(stage.side).dump
    waiting = next((name for name in (stage.told_by if elsewhere else stage.needs) if name not in done), "")
    if waiting:
        return Step(stage, "run", "", because=waiting)
    declared = _declared(stage, job, done)
    if elsewhere:
        return _elsewhere(stage, where, declared)
    key = _key(stage, job, declared, done)
    sealed = where.store.find(stage.name, key)
    if sealed and not sealed.damaged:
        return Step(stage, "kept", key, sealed=sealed)
    damage = where.store.damage(stage.name, key)
    because = "what it read was damaged" if sealed else damage or _because(stage, where, declared, done)
    return Step(stage, "run", key, because=because)


def seal_of(step: Step, job: Job, done: Mapping[str, Sealed]) -> dict[str, Any]:
    """Return what the store is to write beside a finished instance."""
    return {
        "name": step.stage.name,
        "key": step.key,
        "declared": _declared(step.stage, job, done),
        "needs": {name: done[name].seal for name in step.stage.needs},
    }


def missing_side(step: Step, command: str) -> StoreError:
    """Return the error for a side that was looked up and not found; ``command`` makes it."""
    side = step.stage.side
    return StoreError(
        f"no sealed {side} dump for this recipe: {step.because}",
        next_step=f"make it where the {side} runs:  {command}",
    )


def _elsewhere(stage: Stage, where: Place, declared: Mapping[str, Any]) -> Step:
    prefix = _declared_key(stage, declared)
    found = where.store.named(stage.name, prefix)
    if found:
        damage = where.store.damage(stage.name, found[0].key)
        if damage:
            return Step(stage, "missing", prefix, because=f"{found[0].folder} is damaged: {damage}")
        return Step(stage, "kept", found[0].key, sealed=found[0])
    others = where.store.named(stage.name)
    if not others:
        return Step(stage, "missing", prefix, because=f"no {stage.side} was sealed in {where.store.root}")
    differing = _shown(keys.changes(others[0].declared, declared))
    return Step(stage, "missing", prefix, because=f"the {stage.side} in {where.store.root} is of another recipe: {differing}")


def _declared(stage: Stage, job: Job, done: Mapping[str, Sealed]) -> dict[str, Any]:
    """Return what the key is made of, and what is written beside the artifacts: no secret is in either."""
    told = {} if stage.told is None else stage.told({name: done[name].folder for name in stage.told_by})
    declared: dict[str, Any] = redaction.plain({"version": stage.version, **stage.declare(job), **told})
    return declared


def _declared_key(stage: Stage, declared: Mapping[str, Any]) -> str:
    return keys.digest([stage.name, declared])[:_DECLARED_DIGITS]


def _key(stage: Stage, job: Job, declared: Mapping[str, Any], done: Mapping[str, Sealed]) -> str:
    if stage.place is None:
        needs = {name: done[name].seal for name in stage.needs}
        return keys.digest([stage.name, declared, own_code(of_agent=bool(stage.side)), needs])[:_DECLARED_DIGITS]
    here = keys.digest([stage.place(job), {name: done[name].key for name in stage.needs if name not in stage.told_by}])
    return f"{_declared_key(stage, declared)}-{here[:_PLACE_DIGITS]}"


@functools.cache
def own_code(*, of_agent: bool) -> str:
    """Return a digest of the agent's code, or of all of precflow's: what an older one judged or recorded is made again.

    Stages of a side depend on the agent alone, so that another judge makes no dump again.
    """
    package = Path(__file__).parents[1]
    files = sorted((package / "agent" if of_agent else package).rglob("*.py"))
    return keys.digest([keys.file_digest(file) for file in files])


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

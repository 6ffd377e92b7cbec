"""The stage instances of a recipe in its run folder: which are wanted, which are kept from before, under which key.

A key is made of what was declared, what the stage needs and which code makes it. It holds no path and no time, so that the
same recipe gives the same key in another folder, on another machine, on another day: that is how the reference's machine and
the target's machine find each other's dumps in one store.
"""

from __future__ import annotations

import functools
import shlex
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent import redaction
from precflow.config.schema import RunConfig, checks_environment_alone
from precflow.config.sections.store_address import is_address
from precflow.errors import ConfigError, StoreError
from precflow.run.manifest import Manifest
from precflow.run.remote.filesystem import Address
from precflow.run.remote.sharing import Remote
from precflow.run.store import Sealed, Store
from precflow.stages import as_is, noise, registry
from precflow.stages.job import Instance, Job
from precflow.stages.second_pass import region

FORGONE = frozenset([noise.KIND, as_is.KIND])  # kinds without which a run goes on where the machine of a side has not made them
_TRAVELS = FORGONE | {"dump"}  # kinds of stages that the machine of the other side finds in the store

_DUMP = "dump"

# Hex digits of the two parts of a key. Another machine finds a dump by the first part alone.
_DECLARED_DIGITS = 10
_MACHINE_DIGITS = 6


@dataclass(frozen=True)
class RunFolder:
    """Where the runs of a recipe and the results of their stages are.

    Attributes:
        folder: The run folder, ``runs/RECIPE``.
        store: The finished stages on this machine; outside of the run folder if recipe or site name a folder as the store.
        manifest: The history of runs.
        remote: The store behind a URL, if recipe or site name one.
    """

    folder: Path
    store: Store
    manifest: Manifest
    remote: Remote | None = None

    @property
    def place(self) -> str:
        """Where another machine would put what it made, for people."""
        return self.remote.url if self.remote else str(self.store.root)

    def find(self, name: str, key: str) -> Sealed | None:
        """Return a whole instance, from this machine or from the remote store; ``None`` if there is none."""
        sealed = self.store.find(name, key)
        # A result of damaged input has the key of a whole one.
        if (sealed is None or sealed.damaged) and self.remote:
            return self.remote.find(name, key) or sealed
        return sealed

    def search(self, name: str, prefix: str = "") -> list[Sealed]:
        """Return all instances of a name whose key starts with ``prefix``, newest first; each once, from here if it is here."""
        here = self.store.list_sealed(name, prefix)
        known = {sealed.key for sealed in here if not self.store.find_damage(name, sealed.key)}
        there = self.remote.search(name, prefix) if self.remote else []
        every = [sealed for sealed in here if sealed.key in known or not there]
        every += [sealed for sealed in there if sealed.key not in known]
        return sorted(every, key=lambda sealed: sealed.finished, reverse=True)

    def bring(self, sealed: Sealed, say: Callable[[int, int], None] = lambda *_: None) -> Sealed:
        """Return an instance whose files are on this machine; see :meth:`Remote.bring`."""
        return self.remote.bring(sealed, say) if self.remote else sealed


@dataclass(frozen=True)
class Step:
    """One stage instance in a plan.

    Attributes:
        stage: The stage.
        state: ``kept``, ``run``, or ``missing``: the dump of a side that does not run here and was not recorded elsewhere yet.
        key: Its key; ``""`` if it depends on something that has not run.
        because: Why it would run, ``""`` if it is kept.
        sealed: The finished instance, if it is kept.
    """

    stage: Instance
    state: str
    key: str
    because: str = ""
    sealed: Sealed | None = None


class Agenda:
    """The stage instances that a run has yet to make, in order of need.

    The list changes on the way: only the finished ``region`` stage tells whether escalating capture needs a second pass.

    Attributes:
        postponed: Instances of the second pass that another machine has to make.
    """

    def __init__(self, job: Job, where: RunFolder) -> None:
        self._config = job.config
        self._target_made = is_target_made(job, where)
        self._forgone = set[str]()
        self._left = deque(select_stages(job.config, target_made=self._target_made))
        self.postponed: list[Instance] = []

    def __iter__(self) -> Iterator[Instance]:
        """Yield the instances that are left; the list may change between two of them."""
        while self._left:
            yield self._left.popleft()

    @property
    def following(self) -> Instance | None:
        """The instance that comes next, as far as is known; ``None`` behind the last one."""
        return self._left[0] if self._left else None

    @property
    def left(self) -> Sequence[Instance]:
        """The instances that come, as far as is known."""
        return tuple(self._left)

    def learn(self, stage: Instance, sealed: Sealed) -> None:
        """Take a finished instance into account: a region that needs no second pass ends the capture."""
        if stage.name == region.NAME and not region.read_scope(sealed.folder).needed:
            self._drop_second_pass()

    def postpone(self, stage: Instance) -> bool:
        """Leave an instance to another machine; return whether the run can end without it.

        Only dumps of the second pass can be left. If the other side runs here, its second pass is still recorded; the verdict
        is that of the first pass.
        """
        if not stage.scope_needs:
            return False
        self.postponed.append(stage)
        self._drop_second_pass(keep=[other for other in self._left if other.scope_needs])
        return True

    def forgo(self, stage: Instance) -> bool:
        """Go on without an instance that the machine of its side has not made; return whether the run can.

        Without a noise floor fixed limits apply. Without what a side computes as it is the verdict says that it was not run.
        """
        if stage.kind not in FORGONE:
            return False
        self._forgone.add(stage.name)
        left = {each.name for each in self._left}
        every = select_stages(self._config, target_made=self._target_made, forgone=self._forgone)
        self._left = deque(each for each in every if each.name in left)
        return True

    def _drop_second_pass(self, keep: Sequence[Instance] = ()) -> None:
        # The stages behind the region come from a new selection: without a second pass `advise` and `report` have other needs.
        first_pass = select_stages(self._config, second_pass=False, target_made=self._target_made, forgone=self._forgone)
        names = [stage.name for stage in first_pass]
        self._left = deque([*keep, *first_pass[names.index(region.NAME) + 1 :]])


def locate_run(config: RunConfig) -> RunFolder:
    """Return where the runs of a recipe and their results are; nothing is created, and nothing is connected to."""
    folder = Path(config.runs).expanduser() / (config.name or config.recipe)
    named = config.store or config.site.store
    if is_address(named):
        store = Store(folder / "store")
        address = Address(named, profile=config.site.store_profile, endpoint=config.site.store_endpoint)
        return RunFolder(folder, store, Manifest(folder), Remote(address, config.recipe, store))
    root = Path(named).expanduser() / config.recipe if named else folder / "store"
    return RunFolder(folder=folder, store=Store(root), manifest=Manifest(folder))


def refuse_other_recipe(config: RunConfig, where: RunFolder) -> None:
    """Refuse a run folder that has runs of another recipe: one history compares runs of one recipe.

    Raises:
        ConfigError: The name of a run, or a recipe with the name of such runs, is taken.
    """
    newest = next(iter(reversed(where.manifest.entries())), None) if where.folder.is_dir() else None
    words = dict(word.partition("=")[::2] for word in shlex.split(newest.command)) if newest else {}
    chosen = words.get("+recipe", "").strip("[]").split(",")
    other = "+".join(name.strip() if name.strip() in config.recipe.split("+") else Path(name.strip()).stem for name in chosen)
    if other in {"", config.recipe} or not (config.name or words.get("name")):
        return
    raise ConfigError(
        f"{where.folder} has runs of the recipe {other}, and this is {config.recipe}",
        next_step=f"name={where.folder.name}_2, or another one that is free: precflow ls runs shows those that are taken",
    )


def select_stages(
    config: RunConfig, *, second_pass: bool = True, target_made: bool = False, forgone: Collection[str] = ()
) -> list[Instance]:
    """Return the stage instances of this run, each after those that it needs.

    A side that does not run here contributes its dump only; with the reference alone there is nothing to judge yet.

    Args:
        config: The recipe.
        second_pass: Whether the region asks for a second pass; ``True`` until that is known.
        target_made: The target was recorded elsewhere already (see :func:`is_target_made`), so a run of the reference alone
            can judge.
        forgone: See :func:`precflow.stages.registry.instances`.
    """
    every = registry.instances(config, second_pass=second_pass, forgone=forgone)
    here = [stage for stage in every if not stage.side or stage.side in config.sides or stage.kind in _TRAVELS]
    # With the reference alone there is nothing to compare with yet: the run on the target's machine compares and judges.
    if (
        tuple(config.sides) == ("reference",)
        and not checks_environment_alone(config)
        and not (config.target.dump or config.target.log or target_made)
    ):
        here = [stage for stage in here if stage.side == "reference" and not stage.scope_needs]
    if config.stages:
        here = [stage for stage in here if stage.kind in config.stages]
        # To look for a crash, one side is recorded alone: nothing here reads what the other one has recorded.
        read = {name for stage in here for name in stage.needs}
        here = [stage for stage in here if not stage.side or stage.side in config.sides or stage.name in read]
    return here


def use_what_is_there(job: Job, where: RunFolder) -> Job:
    """Return the job with the stages that its chosen ones need.

    ``stages=[judge]`` judges again what a run has recorded, measured and compared before, with its noise floor. What is not
    there is added too, but for recordings: ``stages=[dump,compare]`` compares from nothing, and ``stages=[judge]`` from nothing
    misses a dump, which is said when its turn comes.
    """
    chosen = job.config.stages
    if not chosen:
        return job
    whole = replace(job, config=replace(job.config, stages=()))
    every = {stage.name: stage for stage in select_stages(whole.config)}
    needed = {name for name, stage in every.items() if stage.kind in chosen}
    waiting = list(needed)
    while waiting:
        more = every.keys() & set(every[waiting.pop()].needs) - needed
        needed |= more
        waiting += more
    done: dict[str, Sealed] = {}
    for name, stage in every.items():
        if name in needed and (step := resolve(stage, whole, where, done)).sealed is not None:
            done[name] = step.sealed
    kinds = dict.fromkeys(every[name].kind for name in every if name in needed and every[name].kind not in chosen)
    there = [kind for kind in kinds if all(name in done for name in needed if every[name].kind == kind)]
    return replace(job, config=_add_needs(replace(job.config, stages=(*chosen, *there))))


def _add_needs(config: RunConfig) -> RunConfig:
    """Return a recipe whose ``stages`` have all that they need, but recordings and the choice of a region for a second pass.

    A chosen stage runs without a second pass where none was asked for, so the region is no need of it.
    """
    while True:
        needed = {name.partition("@")[0].partition(".")[0] for stage in select_stages(config) for name in stage.needs}
        more = [kind for kind in registry.list_names() if kind in needed and kind not in {*config.stages, _DUMP, region.NAME}]
        if not more:
            return config
        config = replace(config, stages=(*config.stages, *more))


def is_target_made(job: Job, where: RunFolder) -> bool:
    """Return whether the reference runs here for its second pass: the target was recorded elsewhere in the meantime."""
    config = job.config
    if tuple(config.sides) != ("reference",) or config.target.dump or not region.escalates(config):
        return False
    target = next(stage for stage in registry.instances(config) if stage.name == "dump.target")
    return resolve(target, job, where, {}).state == "kept"


def check_stages(config: RunConfig) -> None:
    """Refuse names in ``stages`` that do not exist.

    Raises:
        ConfigError: A name is unknown.
    """
    unknown = [name for name in config.stages if name not in registry.list_names()]
    if unknown:
        raise ConfigError(f"stages: no stage {', '.join(unknown)}; there are {', '.join(registry.list_names())}")


def resolve(stage: Instance, job: Job, where: RunFolder, done: Mapping[str, Sealed]) -> Step:
    """Decide whether one stage instance is kept, has to run, or is missing.

    Args:
        stage: The instance.
        job: The recipe.
        where: Run folder and store.
        done: Finished instances by name; what a stage needs and is not among them has to run first.
    """
    elsewhere = stage.side and stage.side not in job.config.sides and stage.kind in _TRAVELS and not job.side(stage.side).dump
    # A dump that another machine makes is only looked up here. Its environment is not needed for that, but the region is: it
    # belongs to what was declared.
    waiting = next((name for name in (stage.scope_needs if elsewhere else stage.needs) if name not in done), "")
    # Of a plan: what the key is made of may lie in the remote store, and a plan downloads no dump.
    waiting = waiting or next((f"{name}, which is not downloaded yet" for name in stage.scope_needs if done[name].upload), "")
    if waiting:
        return Step(stage, "run", "", because=waiting)
    declared = _declare(stage, job, done)
    if elsewhere:
        return _find_on_other_machine(stage, job, where, declared)
    key = _compute_key(stage, job, declared, done)
    sealed = where.find(stage.name, key)
    # A result of damaged input has the key of a whole one, so it is made again although it is there.
    if sealed and not sealed.damaged:
        return Step(stage, "kept", key, sealed=sealed)
    damage = where.store.find_damage(stage.name, key)
    because = "what it was made of was not whole" if sealed else damage or _explain_run(stage, where, declared, done)
    return Step(stage, "run", key, because=because)


def describe_seal(step: Step, job: Job, done: Mapping[str, Sealed]) -> dict[str, Any]:
    """Return what the store writes beside a finished instance."""
    return {
        "name": step.stage.name,
        "key": step.key,
        "declared": _declare(step.stage, job, done),
        "needs": {name: done[name].seal for name in step.stage.needs},
    }


def missing_side_error(step: Step, command: str) -> StoreError:
    """Return the error for a side that should have been recorded elsewhere and was not; ``command`` records it."""
    side = step.stage.side
    return StoreError(
        f"no sealed {side} dump for this recipe: {step.because}",
        next_step=f"make it where the {side} runs:  {command}",
    )


def _find_on_other_machine(stage: Instance, job: Job, where: RunFolder, declared: Mapping[str, Any]) -> Step:
    """Look for a dump that another machine made, by the first part of its key; the other part only that machine knows.

    Where a side has a script of its own, that of the other machine is not here: everything but the script has to be the same.
    """
    prefix = _compute_declaration_key(stage, declared)
    matching = where.search(stage.name, prefix)
    if not matching and (job.config.reference.script or job.config.target.script):
        wanted = _leave_out_script(declared)
        matching = [sealed for sealed in where.search(stage.name) if _leave_out_script(sealed.declared) == wanted]
    if matching:
        newest = matching[0]
        damage = "" if newest.upload else where.store.find_damage(stage.name, newest.key)
        if damage:
            return Step(stage, "missing", prefix, because=f"{newest.folder} is damaged: {damage}")
        return Step(stage, "kept", newest.key, sealed=newest)
    others = where.search(stage.name)
    if not others:
        return Step(stage, "missing", prefix, because=f"no {stage.side} was sealed in {where.place}")
    differing = _describe_changes(keys.changes(others[0].declared, declared))
    if _leave_out_script(others[0].declared) == _leave_out_script(declared):
        here = "target" if stage.side == "reference" else "reference"
        differing += f"; if one is a port of the other, name that of this machine as {here}.script"
    return Step(stage, "missing", prefix, because=f"the {stage.side} in {where.place} is of another recipe: {differing}")


def _leave_out_script(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was declared without the content of the script."""
    workload = declared.get("workload")
    return {**declared, "workload": {**workload, "script": None}} if isinstance(workload, Mapping) else dict(declared)


def _declare(stage: Instance, job: Job, done: Mapping[str, Sealed]) -> dict[str, Any]:
    """Return what the key is made of. It is also written beside the artifacts, so secrets are taken out of it."""
    scope = {} if stage.declare_scope is None else stage.declare_scope({name: done[name].folder for name in stage.scope_needs})
    left = {"left": {name: _find_left(done[name], stage.reads_left) for name in stage.needs}} if stage.reads_left else {}
    declared: dict[str, Any] = redaction.redact({"version": stage.version, **stage.declare(job), **scope, **left})
    return declared


def _find_left(sealed: Sealed, places: Sequence[str]) -> dict[str, str]:
    """Return name -> checksum of the files of an instance that are, or lie in, one of some places; nothing is downloaded."""
    return {name: checksum for name, checksum in sealed.files.items() if name.partition("/")[0] in places}


def _compute_declaration_key(stage: Instance, declared: Mapping[str, Any]) -> str:
    return keys.digest([stage.name, declared])[:_DECLARED_DIGITS]


def _compute_key(stage: Instance, job: Job, declared: Mapping[str, Any], done: Mapping[str, Sealed]) -> str:
    """Return the key of an instance.

    A stage that runs on a machine of its own (``locate``) has a key of two parts, DECLARATION-MACHINE. Another machine, which
    cannot compute the second part, finds the dump by the first.
    """
    if stage.locate is None:
        needs = {name: done[name].seal for name in stage.needs}
        return keys.digest([stage.name, declared, digest_own_code(of_agent=bool(stage.side)), needs])[:_DECLARED_DIGITS]
    machine = keys.digest([stage.locate(job), {name: done[name].key for name in stage.needs if name not in stage.scope_needs}])
    return f"{_compute_declaration_key(stage, declared)}-{machine[:_MACHINE_DIGITS]}"


@functools.cache
def digest_own_code(*, of_agent: bool) -> str:
    """Return a digest of the agent's code, or of all of precflow's. It goes into keys: what older code made is made again.

    Stages of a side depend on the agent's code only, so that no dump has to be recorded again after a change of the judge.
    """
    package = Path(__file__).parents[1]
    files = sorted((package / "agent" if of_agent else package).rglob("*.py"))
    return keys.digest([keys.file_digest(file) for file in files])


def _explain_run(stage: Instance, where: RunFolder, declared: Mapping[str, Any], done: Mapping[str, Sealed]) -> str:
    """Return why an instance has to run: what differs from the last one that a run of this folder used."""
    known = where.store.list_sealed(stage.name)
    before = next((sealed for sealed in known if sealed.key == where.manifest.last(stage.name)), None)
    if before is None:
        return "not made with these values" if known else "never made"
    differing = keys.changes(before.declared, declared)
    if differing:
        return _describe_changes(differing)
    changed = [name for name in stage.needs if before.needs.get(name) != done[name].seal]
    return ", ".join(changed) if changed else "the machine or the code changed"


def _describe_changes(differing: Sequence[tuple[str, Any, Any]]) -> str:
    first = ", ".join(
        f"other content of {key.removesuffix('.content')}"  # two digests would tell nobody anything
        if key.endswith(".content")
        else f"{key} {_describe_value(old)} -> {_describe_value(new)}"
        for key, old, new in differing[:2]
    )
    return first + (f" and {len(differing) - 2} more" if len(differing) > 2 else "")


def _describe_value(value: Any) -> str:
    text = "(unset)" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."

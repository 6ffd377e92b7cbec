"""Finds what can be deleted from a store, and deletes it: stages that no kept run names, and remains of failed attempts.

Only folders that the store made are considered: sealed ones whose seal names the folder, failed attempts and unfinished ones.
A folder is renamed into ``.pruned/`` before it is deleted. If a prune is killed halfway, no run finds a stage with half of its
files, and the next prune deletes the rest. Links are never followed.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, checksum_of
from precflow.errors import StoreError
from precflow.run.manifest import MANIFEST_FILE, Manifest, RunEntry
from precflow.run.store import FETCHING, MAKING, find_foreign, lock_file
from precflow.stages.artifacts import SEAL_FILE
from precflow.stages.dump import GIVEN_FILE

_PRUNED = ".pruned"
_FAILED = ".failed"
_UNFINISHED = re.compile(r"(?P<instance>.+)-\d+")  # NAME-KEY-PID
_LARGEST_SEAL = 64_000_000  # bytes; a folder with a larger "seal" is not one that the store made


@dataclass(frozen=True)
class StoreFolder:
    """One folder of a store, and why it can be deleted or stays.

    Attributes:
        name: Its name in the store.
        folder: Where it is.
        bytes: Size on disk; a link counts with its own size.
        used: Seconds since the epoch: when it was made, or last kept by a run.
        why: Why it can be deleted, or why it stays.
        foreign: Name of a file in it that no run has written; ``""`` if there is none.
    """

    name: str
    folder: Path
    bytes: int
    used: float
    why: str
    foreign: str = ""


@dataclass(frozen=True)
class Pruning:
    """What can be deleted from one store, and what stays.

    Attributes:
        store: The store.
        shared: Runs of other folders or machines may name what is in it.
        goes: What can be deleted.
        stays: What is named by a kept run, in use, or too young.
        foreign: Names of what the store did not make; it is never deleted.
    """

    store: Path
    shared: bool
    goes: tuple[StoreFolder, ...] = ()
    stays: tuple[StoreFolder, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class PruneRequest:
    """What the user wants to have deleted.

    Attributes:
        older: Delete only what was not used for this many seconds, and keep the runs that began within them; ``None``: any age.
        runs: How many of the last runs are kept; ``None`` for all, or with ``older`` for those that are young enough.
        now: Seconds since the epoch.
    """

    older: float | None = None
    runs: int | None = None
    now: float = field(default_factory=time.time)

    def keeps(self, entries: Sequence[RunEntry]) -> list[RunEntry]:
        """Return the runs whose stages stay: always the last one, and those that are young or recent enough."""
        if self.older is None and self.runs is None:
            return list(entries)
        last = entries[-(self.runs or 1) :]
        young = [] if self.older is None else [run for run in entries if self.now - _time_of_start(run) <= self.older]
        # -1 is the exit code of a run that has not ended. One that was killed keeps it for ever, so with an age it can go.
        under_way = [run for run in entries if run.exit_code == -1 and self.older is None]
        return [run for run in entries if run in last or run in young or run in under_way]


def find_prunable(
    folders: Sequence[Path], stores: Sequence[Path], wish: PruneRequest, *, witnesses: Sequence[Path] = ()
) -> list[Pruning]:
    """Return what can be deleted from the stores of run folders, and from stores that were named themselves.

    Args:
        folders: Run folders.
        stores: Stores outside of them. From these, and from any store that is not a run folder's own, only what was not used
            for ``wish.older`` can be deleted: runs that are not known here may name it.
        wish: What the user wants to have deleted.
        witnesses: Other run folders, whose runs may name what is in these stores.

    Raises:
        StoreError: A run folder's history is damaged, so it is unknown what its runs name.
    """
    histories = {folder: Manifest(folder).entries() for folder in dict.fromkeys([*folders, *witnesses])}
    used = {folder: {_locate_store(folder, entry) for entry in entries} for folder, entries in histories.items()}
    own = {(folder / "store").resolve(): folder for folder in histories}
    asked = [place for folder in folders for place in ((folder / "store").resolve(), *sorted(used[folder]))]
    roots = [root for root in dict.fromkeys([*asked, *(store.resolve() for store in stores)]) if root.is_dir()]
    # A dump in one store may be given to a run with another store (`target.dump=...`), so all known stores are asked.
    given = {
        path
        for root in {*roots, *own, *(place for places in used.values() for place in places)}
        for path in _list_given_dumps(root)
    }
    prunings = []
    for root in roots:
        entries = [entry for folder, every in histories.items() for entry in every if _locate_store(folder, entry) == root]
        prunings.append(_sort_folders(root, entries, wish, given, shared=root not in own or not entries))
    return prunings


def _locate_store(folder: Path, entry: RunEntry) -> Path:
    return entry.locate_store(folder).resolve()


def prune(pruning: Pruning, still: Pruning) -> Iterator[tuple[StoreFolder, str]]:
    """Delete what can be deleted, and yield each folder with the reason why it was left (``""`` if it is gone).

    Args:
        pruning: What was shown.
        still: The same, determined again just now: whatever a run has started to use since then stays.
    """
    goes = {rest.folder for rest in still.goes}
    for rest in pruning.goes:
        if rest.folder not in goes:
            yield rest, "a run has come to use it"
            continue
        try:
            with _hold(rest) as free:
                if free:
                    _delete(rest.folder, pruning.store / _PRUNED)
                yield rest, "" if free else "it is being made right now"
        except OSError as error:
            yield rest, f"cannot be deleted: {error.strerror or error}"


def list_run_folders(runs: Path) -> list[Path]:
    """Return the run folders at any depth below a folder: recipe names may have slashes. Links are not followed."""
    run_folders = []
    for folder, names, files in os.walk(runs):
        here = Path(folder)
        if MANIFEST_FILE in files or (here / "store").is_dir():
            run_folders.append(here)
            # os.walk goes on only into the folders that are left in this list.
            names[:] = [name for name in names if name not in {"store", "public"}]
    return sorted(run_folders)


def list_stores(folder: Path, depth: int = 3) -> list[Path]:
    """Return the stores at or below a folder, at most ``depth`` folders down.

    ``store=FOLDER`` makes one for each recipe in it, whose name may have two slashes. Links are not followed.
    """
    if not _is_folder(folder):
        return []
    if _is_folder(folder / MAKING) or any(_is_folder(path) and (path / SEAL_FILE).is_file() for path in folder.iterdir()):
        return [folder]
    stores = []
    for inner in sorted(folder.iterdir()) if depth else ():
        with contextlib.suppress(PermissionError):  # somebody else's folder beside ours is no store of ours
            stores += list_stores(inner, depth - 1)
    return stores


def _sort_folders(root: Path, entries: Sequence[RunEntry], wish: PruneRequest, given: set[Path], *, shared: bool) -> Pruning:
    kept = wish.keeps(entries)
    named = {f"{name}-{key}" for entry in kept for name, key in entry.instances.items()}
    once = {f"{name}-{key}": entry.number for entry in entries for name, key in entry.instances.items()}
    last = max((_time_of_start(entry) for entry in entries), default=0.0)
    goes: list[StoreFolder] = []
    stays: list[StoreFolder] = []
    foreign: list[str] = []
    for rest in _list_folders(root, foreign):
        instance, reason = rest.name, rest.why
        # What a kept run names stays whatever its age, so this comes first.
        if instance in named:
            stays.append(replace(rest, why="named by a run"))
        elif any(path == rest.folder or rest.folder in path.parents for path in given):
            stays.append(replace(rest, why="another run was given this dump"))
        elif reason and rest.folder.parent.name == _PRUNED:
            goes.append(rest)
        elif rest.folder.parent.name in {MAKING, FETCHING} and not _is_free(rest):
            stays.append(replace(rest, why="being made right now"))
        elif rest.foreign:
            stays.append(replace(rest, why=f"it holds {rest.foreign}, which no run has written"))
        elif wish.older is not None and wish.now - rest.used <= wish.older:
            stays.append(replace(rest, why="younger than asked for"))
        elif shared and wish.older is None:
            stays.append(replace(rest, why="in a shared store: runs elsewhere may name it"))
        # A run writes an instance into its history only when it is sealed, so a new one may be about to be named.
        elif not shared and rest.used >= last and instance not in once:
            stays.append(replace(rest, why="made since the last run began"))
        else:
            number = once.get(instance, 0)
            goes.append(replace(rest, why=reason or (f"run {number} was the last to name it" if number else "no run names it")))
    return Pruning(root, shared, tuple(goes), tuple(stays), tuple(foreign))


def _list_folders(root: Path, foreign: list[str]) -> Iterator[StoreFolder]:
    """Yield what the store made; names of everything else go into ``foreign``."""
    for folder in sorted(root.iterdir()):
        if folder.name in {MAKING, FETCHING, _PRUNED} and _is_folder(folder):
            continue
        seal = _read_seal(folder) if _is_folder(folder) else None
        if seal is not None:
            rest = _measure(folder, max(float(seal["finished"]), _time_of_change(folder / SEAL_FILE)), "")
            yield replace(rest, foreign=find_foreign(folder, seal["files"]))
        elif _is_folder(folder) and folder.name.endswith(_FAILED):
            yield _measure(folder, _time_of_change(folder), "a failed attempt")
        else:
            foreign.append(folder.name)
    for place, why in ((MAKING, "never finished"), (FETCHING, "half downloaded"), (_PRUNED, "half deleted")):
        for folder in sorted((root / place).iterdir()) if _is_folder(root / place) else ():
            if _is_folder(folder) and (place != MAKING or _UNFINISHED.fullmatch(folder.name)):
                yield _measure(folder, _time_of_change(folder), why)


def _measure(folder: Path, used: float, why: str) -> StoreFolder:
    total = 0  # a link counts with its own size
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(here, name)).st_size  # noqa: PTH118  # dumps have many files
    return StoreFolder(folder.name, folder, total, used, why)


@contextlib.contextmanager
def _hold(rest: StoreFolder) -> Iterator[bool]:
    """Hold the lock of the instance that a folder belongs to, so that no run makes it meanwhile; yield whether it was free."""
    if rest.folder.parent.name == FETCHING:
        with _hold_lock(rest.folder.with_name(f"{rest.name}.lock")) as free:
            yield free
        return
    unfinished = _UNFINISHED.fullmatch(rest.name) if rest.folder.parent.name == MAKING else None
    instance = unfinished["instance"] if unfinished else rest.name.removesuffix(_FAILED)
    root = rest.folder.parent.parent if rest.folder.parent.name in {MAKING, FETCHING, _PRUNED} else rest.folder.parent
    if rest.folder.parent.name == _PRUNED:  # no run uses what is in there, so it needs no lock
        yield True
        return
    (root / MAKING).mkdir(exist_ok=True)
    with _hold_lock(lock_file(root, instance)) as free:
        yield free


@contextlib.contextmanager
def _hold_lock(file: Path) -> Iterator[bool]:
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _is_free(rest: StoreFolder) -> bool:
    with _hold(rest) as free:
        return free


def _delete(folder: Path, pruned: Path) -> None:
    """Rename a folder, then delete it, so that no run finds a stage with half of its files."""
    if folder.parent != pruned:
        pruned.mkdir(exist_ok=True)
        aside = pruned / f"{folder.name}-{os.getpid()}-{time.time_ns()}"
        folder.rename(aside)
        folder = aside
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # it is not empty: another prune works, or was killed
        pruned.rmdir()


def _read_seal(folder: Path) -> Mapping[str, Any] | None:
    """Return a folder's seal as plain data; ``None`` if it has none, or that of another folder."""
    seal = folder / SEAL_FILE
    try:
        if seal.is_symlink() or not seal.is_file() or seal.stat().st_size > _LARGEST_SEAL:
            return None
        plain = intake.read_json(seal, _LARGEST_SEAL)
        # Seals of an older precflow have no checksum, and its stages can be deleted too.
        if CHECKSUM in plain and plain[CHECKSUM] != checksum_of(plain):
            return None
        usable = math.isfinite(float(plain["finished"])) and isinstance(plain["files"], dict)
        return plain if usable and f"{plain['name']}-{plain['key']}" == folder.name else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _list_given_dumps(root: Path) -> Iterator[Path]:
    """Yield the folders of the users' own dumps that runs with this store were given."""
    for pointer in root.glob(f"dump.*/{GIVEN_FILE}") if root.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield Path(intake.read_json(pointer)["path"]).resolve()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _time_of_change(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _time_of_start(entry: RunEntry) -> float:
    try:
        return datetime.datetime.fromisoformat(entry.started).timestamp()
    except ValueError as error:
        raise StoreError(f"run {entry.number} began at {entry.started!r}, which is no time") from error

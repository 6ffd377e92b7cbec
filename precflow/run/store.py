"""A store of finished stages: one sealed folder for each stage instance, named by the key of what went into it.

Artifacts are written into a folder of their own, which is renamed when the seal is written: a rename is atomic, so a reader
sees a whole instance or none, however the writer ended. The lock keeps two runs from making the same instance at the same
time, for instance the jobs of a sweep that share a dump. The folder looks like this:

STORE/judge-1c9f20ab34/           artifacts and sealed.json, never changed again
STORE/.making/judge-1c9f...-4711/ being made; renamed when it is whole, thrown away when its maker died
STORE/.making/judge-1c9f...lock   held by the process that makes it
STORE/.making/judge-1c9f...owner  who that is
STORE/judge-1c9f20ab34.failed/    what the last failed attempt left, to look into
STORE/.fetching/judge-1c9f...-CONTENT/  being downloaded from a remote store; the next attempt continues it
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from precflow import keys
from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, checksum_of
from precflow.dumps import layout
from precflow.errors import BusyError, PrecflowError, StoreError
from precflow.files import remove_leftovers, write_text
from precflow.stages import artifacts
from precflow.stages.artifacts import SEAL_FILE

SEAL_SCHEMA = 2  # 1 had sizes of artifacts and no checksums
_KEYS = frozenset("schema name key seal declared needs seconds note finished damaged files checksum".split())
MAKING = ".making"
FETCHING = ".fetching"  # what is being downloaded from a remote store
_BY_THE_DUMP = ""  # in place of a checksum: the dump's own seal has it
_FEW = 8
_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT}  # the disk is full, or the user's share of it


@dataclass(frozen=True)
class Sealed:
    """A finished stage instance.

    Attributes:
        name: Such as ``dump.target``.
        key: Hex digits behind the name.
        folder: Where its artifacts are.
        seal: Hash of the artifacts, so that whoever needs them keys on their content.
        declared: Plain data that the key was made of.
        needs: Name -> seal of what it was made from.
        seconds: How long it took.
        bytes: Size on disk.
        note: One line about it.
        finished: Seconds since the epoch.
        damaged: What it was made from was not whole, so that it is no answer for another run.
        upload: Where it lies in a remote store, if it is not in ``folder`` yet; ``""`` if it is.
        files: Name -> checksum of each artifact; ``""`` for one whose checksum is in the dump's own seal.
    """

    name: str
    key: str
    folder: Path
    seal: str
    declared: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    bytes: int = 0
    note: str = ""
    finished: float = 0.0
    damaged: bool = False
    upload: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


class Attempt:
    """A stage instance that is being made.

    Attributes:
        folder: Empty folder to write artifacts into.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = time.monotonic()


class Store:
    """Sealed stage instances in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, name: str, key: str) -> Sealed | None:
        """Return the sealed instance, or ``None`` if there is none or if a file of it was lost or changed."""
        sealed = read_seal(self.root / f"{name}-{key}")
        return None if sealed is None or self.find_damage(name, key) else sealed

    def find_damage(self, name: str, key: str) -> str:
        """Return what is wrong with the files of an instance, ``""`` for nothing; artifacts are compared to their checksums.

        Only the record files and shards of a dump are not read, because they may be very large. They are checked when they are
        used, against the checksums in ``step.json``, which is checked here.
        """
        folder = self.root / f"{name}-{key}"
        if not (folder / SEAL_FILE).exists():
            return ""
        try:
            for file, sealed in artifacts.read_seal(folder)["files"].items():
                path = folder / file
                if path.stat().st_size != sealed["bytes"]:
                    return f"{file} has another size than was sealed"
                if sealed[CHECKSUM] != _BY_THE_DUMP and sealed[CHECKSUM] != artifacts.checksum_of_file(path):
                    return f"{file} does not have the checksum that it was sealed with"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{error.filename} is missing" if isinstance(error, FileNotFoundError) else str(error)
        return ""

    def list_sealed(self, name: str, prefix: str = "") -> list[Sealed]:
        """Return all sealed instances of a name whose key starts with ``prefix``, newest first."""
        folders = self.root.glob(f"{name}-{prefix}*") if self.root.is_dir() else ()
        every = [sealed for folder in folders if folder.is_dir() and (sealed := read_seal(folder)) and sealed.name == name]
        return sorted(every, key=lambda sealed: sealed.finished, reverse=True)

    @contextlib.contextmanager
    def making(self, name: str, key: str, *, resumes: bool = False) -> Iterator[Attempt]:
        """Hold the instance's lock and return an empty folder; the remains of a killed attempt are deleted.

        Args:
            name: Name of the instance.
            key: Its key.
            resumes: The stage can continue with these remains, so return them instead.

        After an error, what was written is kept as ``NAME-KEY.failed``, and the error is raised again.

        Raises:
            BusyError: A live process holds it.
            StoreError: The folder cannot be written, or the disk is full.
        """
        with explain_disk_errors(self.root):
            (self.root / MAKING).mkdir(parents=True, exist_ok=True)
        with self._locked(name, key):
            folder = self.root / MAKING / f"{name}-{key}-{os.getpid()}"
            # While this process holds the lock, no other one makes this instance: these folders are of processes that died.
            for left in (self.root / MAKING).glob(f"{name}-{key}-*"):
                if left.is_symlink():  # of no run: what is behind it is neither gone on with nor deleted
                    left.unlink()
                elif resumes and left != folder and not folder.exists():
                    left.replace(folder)
                elif left != folder or not resumes:
                    shutil.rmtree(left, ignore_errors=True)
            with explain_disk_errors(self.root):
                folder.mkdir(exist_ok=resumes)
            attempt, goes_on = Attempt(folder), False
            try:
                with explain_disk_errors(self.root):
                    yield attempt
            except KeyboardInterrupt:
                goes_on = resumes  # left in its place, as after any other kill, for the next run to continue with
                raise
            finally:
                if folder.exists() and not goes_on:
                    failed = self.failed_folder(name, key)
                    shutil.rmtree(failed, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        folder.replace(failed)

    def _next_time(self, name: str) -> float:
        """Return the current time, or if the clock was set back, a time just after that of the newest instance of the name."""
        # Of thousands, only those are read that came to their place last, by the same clock.
        folders = [folder for folder in self.root.glob(f"{name}-*") if folder.is_dir()]
        newest = heapq.nlargest(_FEW, folders, key=lambda folder: folder.stat().st_mtime)
        last = max((sealed.finished for folder in newest if (sealed := read_seal(folder)) and sealed.name == name), default=0.0)
        return max(time.time(), math.nextafter(last, math.inf))

    def seal(self, attempt: Attempt, sealed: Mapping[str, Any]) -> Sealed:
        """Write the seal, move the folder to its place and return the sealed instance.

        Args:
            attempt: The folder with the artifacts.
            sealed: ``name``, ``key``, ``declared``, ``needs`` and ``note`` of the instance; ``seal`` and ``damaged`` if known.

        Raises:
            StoreError: The folder cannot be written, or what was written cannot be read back.
        """
        with explain_disk_errors(self.root):
            remove_leftovers(attempt.folder)
            files = {
                path.relative_to(attempt.folder).as_posix(): path
                for path in sorted(attempt.folder.rglob("*"))
                if path.is_file()
            }
            # The record files and shards of a dump may be very large. Their checksums are in the dump's own seal.
            seals = {
                name: {
                    "bytes": path.stat().st_size,
                    CHECKSUM: _BY_THE_DUMP if layout.is_own(name) else artifacts.checksum_of_file(path),
                }
                for name, path in files.items()
            }
            written: dict[str, Any] = {
                "schema": SEAL_SCHEMA,
                "seconds": round(time.monotonic() - attempt.started, 3),
                "finished": self._next_time(sealed["name"]),
                "files": seals,
                "damaged": False,
                **sealed,
                "seal": sealed.get("seal") or keys.digest(seals),
            }
            # The checksum is that of the values as a reader gets them: JSON makes lists of tuples, for example.
            seal: dict[str, Any] = json.loads(json.dumps(written))
            seal[CHECKSUM] = checksum_of(seal)
            write_text(attempt.folder / SEAL_FILE, json.dumps(seal, ensure_ascii=False, indent=1))
            place = self.root / f"{sealed['name']}-{sealed['key']}"
            # A damaged instance may be in the way, and a folder can be renamed to the name of an empty one only.
            _make_room(place)
            shutil.rmtree(_failed_folder(place), ignore_errors=True)
            attempt.folder.replace(place)
        instance = read_seal(place)
        if instance is None:
            raise StoreError(
                f"{place} was written and cannot be read back", next_step="check the disk, then run the same command"
            )
        return instance

    def take_in(self, folder: Path, name: str, key: str) -> Sealed:
        """Move a whole folder with a seal, which was made elsewhere, to its place and return the sealed instance.

        Raises:
            StoreError: The folder cannot be moved, or its files are not what was sealed.
        """
        place = self.root / f"{name}-{key}"
        with explain_disk_errors(self.root), self._locked(name, key):
            here = self.find(name, key)
            if here is None:
                _make_room(place)
                folder.replace(place)
                here = self.find(name, key)
        if here is None:
            raise StoreError(
                f"{place} came over damaged: {self.find_damage(name, key) or 'its seal is not usable'}",
                next_step=f"remove it, then run the same command: rm -r {place}",
            )
        return here

    def failed_folder(self, name: str, key: str) -> Path:
        """Return the folder where the last failed attempt's files are kept."""
        return _failed_folder(self.root / f"{name}-{key}")

    @contextlib.contextmanager
    def _locked(self, name: str, key: str) -> Iterator[None]:
        # The system releases the lock of a process that dies, so a killed run blocks no other. The owner file is for messages.
        lock = filelock.FileLock(lock_file(self.root, f"{name}-{key}"))
        owner = self.root / MAKING / f"{name}-{key}.owner"
        try:
            with explain_disk_errors(self.root):
                lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise BusyError(
                f"{name} of this recipe is being made by another run: {_describe_owner(owner)}",
                next_step="wait for it, or stop it; this run would make the same thing",
            ) from error
        try:
            with contextlib.suppress(OSError):
                owner.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}))
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()


def find_foreign(folder: Path, named: Collection[str]) -> str:
    """Return the name of a file in the folder of a stage that no run has put there, ``""`` if there is none.

    A link is no file: it goes with its folder, and what is behind it stays.

    Args:
        folder: The folder.
        named: Names of the files in its seal.
    """
    for here, _, names in os.walk(folder):
        for name in names:
            path = Path(here) / name
            relative = path.relative_to(folder).as_posix()
            if relative not in named and relative != SEAL_FILE and not path.is_symlink():
                return relative
    return ""


def _make_room(place: Path) -> None:
    """Delete a damaged instance that is in the way of a whole one.

    Raises:
        StoreError: Somebody has put a file of another sort into its folder.
    """
    try:
        foreign = find_foreign(place, artifacts.read_seal(place)["files"])
    except (OSError, ValueError, KeyError, TypeError):  # nobody knows what was in it
        foreign = ""
    if foreign:
        raise StoreError(
            f"{place} is damaged, and holds {foreign}, which no run has written",
            next_step=f"move that file away, then run the same command: mv {place / foreign} .",
        )
    shutil.rmtree(place, ignore_errors=True)


def lock_file(root: Path, instance: str) -> Path:
    """Return the file to lock before an instance (``NAME-KEY``) is made or deleted."""
    return root / MAKING / f"{instance}.lock"


def mark_used(sealed: Sealed) -> None:
    """Note that a run used an instance, so that ``precflow prune --older`` does not delete it for its age."""
    with contextlib.suppress(OSError):  # a store that can only be read
        os.utime(sealed.folder / SEAL_FILE)


def read_seal(folder: Path) -> Sealed | None:
    """Return what a folder's seal says; ``None`` if it has no usable seal, or a file that is gone or of another size."""
    try:
        seal = artifacts.read_seal(folder)
        if any((folder / name).stat().st_size != file["bytes"] for name, file in seal["files"].items()):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return make_sealed(seal, folder)


def make_sealed(seal: Mapping[str, Any], folder: Path) -> Sealed | None:
    """Return the instance that a seal's plain data describe, ``None`` if it is not usable; its files are not looked at."""
    try:
        texts = (seal["name"], seal["key"], seal["seal"], seal["note"])
        if seal["schema"] != SEAL_SCHEMA or seal.keys() != _KEYS or not all(isinstance(text, str) for text in texts):
            return None
        if not all(math.isfinite(float(seal[name])) for name in ("finished", "seconds")):
            return None
        return Sealed(
            name=seal["name"],
            key=seal["key"],
            folder=folder,
            seal=seal["seal"],
            declared=seal["declared"],
            needs=seal["needs"],
            seconds=seal["seconds"],
            bytes=sum(intake.check_count(file["bytes"], name) for name, file in seal["files"].items()),
            note=seal["note"],
            finished=seal["finished"],
            damaged=seal["damaged"],
            files={name: file[CHECKSUM] for name, file in seal["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into :class:`StoreError` with the folder's name.

    Raises:
        StoreError: The disk is full, the folder is read-only, not allowed, or otherwise out of reach.
    """
    try:
        yield
    except (PrecflowError, filelock.Timeout):  # a Timeout is an OSError too
        raise
    except OSError as error:
        if error.errno in _OUT_OF_SPACE:
            existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
            free = shutil.disk_usage(existing).free
            raise StoreError(
                f"the disk of {folder} is full ({free / 1e6:.0f} MB free)",
                next_step="free some space, then run the same command: finished stages are kept",
            ) from error
        raise StoreError(
            f"cannot write in {folder}: {error.strerror or error}", next_step="choose another folder:  runs=DIR  or  store=DIR"
        ) from error


def _describe_owner(path: Path) -> str:
    try:
        owner = intake.read_json(path)
        return f"pid {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just started"


def _failed_folder(place: Path) -> Path:
    return place.with_name(f"{place.name}.failed")

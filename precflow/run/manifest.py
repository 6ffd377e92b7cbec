"""The history of a run folder: which runs there were, which stage instances each used and how it ended.

``run.json`` has the newest runs and is written again at each stage of a run. So that this takes no longer after twenty thousand
runs than after two, older runs are moved to ``run.older`` now and then, to which only lines are added. A line is a checksum, a
space and a JSON list of runs::

    9f1c... [{"number": 1, ...}, ...]
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import filelock
import msgspec

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, DIGEST_SIZE, checksum_of
from precflow.errors import BusyError, StoreError
from precflow.files import write_text
from precflow.run.store import explain_disk_errors

MANIFEST_FILE = "run.json"
OLDER_FILE = "run.older"
_MOST_RECENT = 200  # runs in run.json; beyond, all but the newest are moved
_STAY = 100
MANIFEST_SCHEMA = 2  # 1 had no checksum
_PATIENCE = 30.0  # seconds to wait for the lock, which others hold only while they write one small file


@dataclass(frozen=True)
class RunEntry:
    """One run.

    Attributes:
        number: From 1.
        started: ISO time, UTC.
        command: The command line that starts it again.
        instances: Stage instance name -> key.
        states: Stage instance name -> ``kept`` or ``run``.
        verdict: Outcome; ``""`` while it runs, or if nothing was judged.
        exit_code: Exit code, -1 while it runs.
        seconds: Duration.
        store: Folder of the stage instances if it is outside of the run folder, else ``""``.
    """

    number: int
    started: str
    command: str
    instances: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    exit_code: int = -1
    seconds: float = 0.0
    store: str = ""

    def locate_store(self, folder: Path) -> Path:
        """Return the folder of the stage instances; ``folder`` is the run folder."""
        return Path(self.store) if self.store else folder / "store"


_DECODER = msgspec.json.Decoder(list[RunEntry])


class Manifest:
    """``run.json`` of one run folder, and ``run.older``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MANIFEST_FILE
        self._older = folder / OLDER_FILE

    def entries(self) -> list[RunEntry]:
        """Return all runs, oldest first.

        Raises:
            StoreError: A file is damaged, or was written by a newer precflow.
        """
        recent = self._read_recent()
        known = {entry.number: entry for entry in self._read_older()}
        known.update({entry.number: entry for entry in recent})  # a killed run may have moved entries and not taken them away
        return [known[number] for number in sorted(known)]

    def _read_recent(self) -> list[RunEntry]:
        if not self.path.exists():
            return []
        try:
            data = intake.read_json(self.path)
            if data["schema"] > MANIFEST_SCHEMA:
                raise StoreError(
                    f"{self.path} was written by a newer precflow (schema {data['schema']})", next_step="update precflow"
                )
            return _read_entries(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{self.path} is damaged: {error}",
                next_step=f"move it away; the store beside it is kept: mv {self.path} {self.path}.damaged",
            ) from error

    def _read_older(self) -> Sequence[RunEntry]:
        try:
            status = self._older.stat()
            return _read_older(self._older, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self._older} is damaged: {error}",
                next_step=f"move it away; newer runs and the store are kept: mv {self._older} {self._older}.damaged",
            ) from error

    def last(self, name: str) -> str:
        """Return the key that stage instance ``name`` had in the newest run that knew it, or ``""``."""
        for read in (self._read_recent, self.entries):  # it is hardly ever an old one
            for entry in reversed(read()):
                if name in entry.instances:
                    return entry.instances[name]
        return ""

    def begin(self, started: str, command: str) -> RunEntry:
        """Add a run and return it."""
        with self._locked():
            entries = self._read_recent()
            last = next((entry.number for entry in reversed(entries or self._read_older())), 0)
            entry = RunEntry(number=last + 1, started=started, command=command)
            self._write([*entries, entry])
        return entry

    def update(self, entry: RunEntry) -> None:
        """Replace the run of the same number."""
        with self._locked():  # and read the file again under the lock: another run may have begun in the meantime
            recent = self._read_recent()
            if any(known.number == entry.number for known in recent):
                self._write([entry if known.number == entry.number else known for known in recent])
            else:  # so many have begun since that it was moved: the last line about a run counts
                self._move([entry])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock needs a file of its own: each write replaces run.json, so a lock on it would be on a file that is gone.
        lock = filelock.FileLock(self.path.with_suffix(".lock"), timeout=_PATIENCE)
        try:
            with explain_disk_errors(self.path.parent):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
        except filelock.Timeout as error:
            raise BusyError(
                f"{lock.lock_file} is held by another run for more than {_PATIENCE:g} s",
                next_step="is a run stuck? end it, then run the same command",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _move(self, entries: list[RunEntry]) -> None:
        """Add a line to the older runs."""
        text = json.dumps([asdict(entry) for entry in entries], ensure_ascii=True).encode()
        with explain_disk_errors(self.path.parent), self._older.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if file.read(1) not in {b"", b"\n"}:  # a killed run has left a part of a line
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(f"{_digest(text)} ".encode() + text + b"\n")

    def _write(self, entries: list[RunEntry]) -> None:
        if len(entries) > _MOST_RECENT:
            self._move(entries[:-_STAY])
            entries = entries[-_STAY:]
        data: dict[str, Any] = {"schema": MANIFEST_SCHEMA, "runs": [asdict(entry) for entry in entries]}
        data[CHECKSUM] = checksum_of(data)
        with explain_disk_errors(self.path.parent):
            write_text(self.path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


@lru_cache(maxsize=2)  # a plan asks for each stage when it was made last
def _read_older(path: Path, modified: int, size: int) -> tuple[RunEntry, ...]:
    """Return the runs in a file of older ones, as it is now.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not what was written.
    """
    del modified, size
    # Behind the last line end is what a run was killed at; its entries are still in run.json.
    lines = intake.read_bytes(path).split(b"\n")[:-1]
    return tuple(entry for line in lines for entry in _read_line(line))


def _read_line(line: bytes) -> list[RunEntry]:
    """Return the runs of a line of older ones.

    Raises:
        ValueError: It is not what was written.
    """
    checksum, _, text = line.partition(b" ")
    if checksum != _digest(text).encode():
        raise ValueError("a line does not have the checksum that it was written with")
    return _DECODER.decode(text)


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=DIGEST_SIZE).hexdigest()


def _read_entries(data: Mapping[str, Any]) -> list[RunEntry]:
    """Return the runs in a manifest's plain data, after checking its schema, its checksum and the keys of each run.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: A check failed.
    """
    if data["schema"] < MANIFEST_SCHEMA:
        raise ValueError(f"an older precflow wrote it, without a checksum (schema {data['schema']})")
    if data[CHECKSUM] != checksum_of(data):
        raise ValueError("it does not have the checksum that it was written with")
    names = {field.name for field in fields(RunEntry)}
    if any(entry.keys() != names for entry in data["runs"]):
        raise ValueError("a run lacks a key, or has one that this precflow does not know")
    return msgspec.convert(data["runs"], list[RunEntry])

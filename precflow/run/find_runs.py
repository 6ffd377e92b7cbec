"""Finds the run that a text on the command line names: ``runs/x@2``, ``x@2``, or ``x`` for the newest run of that folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precflow.config.suggestions import did_you_mean
from precflow.errors import StoreError
from precflow.run.find_dumps import RUNS
from precflow.run.manifest import MANIFEST_FILE, Manifest, RunEntry
from precflow.run.pruning import list_run_folders
from precflow.run.store import Sealed, Store, read_seal
from precflow.stages.scan import NAME as SCAN

_CANNOT_BE_DONE, _RUNNING = 2, -1
_NAME_TWO = "name two runs:  precflow diff FOLDER@1 OTHER@3"


@dataclass(frozen=True)
class NamedRun:
    """One run of a run folder.

    Attributes:
        name: What to type for it, ``FOLDER@NUMBER``.
        folder: Its run folder.
        entry: What the folder's history says about it.
    """

    name: str
    folder: Path
    entry: RunEntry

    def find_instances(self) -> dict[str, Sealed]:
        """Return the stage instances that this run made or used, by name; a dump may be missing, it may be in a remote store.

        Raises:
            StoreError: One of them is no longer in the store, or was changed.
        """
        store = Store(self.entry.locate_store(self.folder))
        instances = {name: store.find(name, key) for name, key in self.entry.instances.items()}
        missing = [name for name, sealed in instances.items() if sealed is None and not name.startswith("dump.")]
        if missing:
            name = missing[0]
            damage = store.find_damage(name, self.entry.instances[name]) or "it was deleted (precflow prune?)"
            raise StoreError(
                f"{self.name} cannot be read: {store.root} has no whole {name} of it any more: {damage}",
                next_step=f"make it again:  {self.entry.command}",
            )
        return {name: sealed for name, sealed in instances.items() if sealed is not None}


def find_run(text: str, *, judged: bool = False) -> NamedRun:
    """Return the run that a text names.

    Args:
        text: A run folder, with or without the number of a run.
        judged: Without a number, take the newest run that came to a verdict; the newest one if none did.

    Raises:
        StoreError: There is no such run folder, or no such run in it; the message names what is there.
    """
    # A folder's own name may have an @, so the whole text is tried first.
    place, mark, number = text.rpartition("@")
    if not mark or _locate(text):
        place, number = text, ""
    folder = _locate(place)
    if folder is None:
        names = [path.relative_to(RUNS).as_posix() for path in list_run_folders(RUNS)]
        here = f"   Runs here: {', '.join(names)}" if names else f"   There are no runs in {RUNS}/"
        raise StoreError(
            f"{text}: no run folder at {place}.{did_you_mean(place.rpartition('/')[2], names)}{here}",
            next_step="name a run folder and a run in it:  FOLDER@2",
        )
    entries = Manifest(folder).entries()
    if not entries:
        raise StoreError(f"{folder} has no runs yet", next_step=f"precflow +recipe={folder.name}")
    known = {str(entry.number): entry for entry in entries}
    if number and number not in known:
        span = f"run {entries[0].number}" if len(entries) == 1 else f"runs {entries[0].number} to {entries[-1].number}"
        raise StoreError(
            f"{folder} has no run {number}; it has {span}", next_step=f"the newest is  {folder}@{entries[-1].number}"
        )
    newest = next((entry for entry in reversed(entries) if entry.verdict or not judged), entries[-1])
    entry = known[number] if number else newest
    return NamedRun(f"{place}@{entry.number}", folder, entry)


def find_run_before(run: NamedRun) -> NamedRun:
    """Return the newest run of the same folder that came to a verdict before this one.

    Raises:
        StoreError: There is none.
    """
    earlier = [entry for entry in Manifest(run.folder).entries() if entry.number < run.entry.number and entry.verdict]
    if not earlier:
        raise StoreError(f"{run.folder} has no run with a verdict before run {run.entry.number}", next_step=_NAME_TWO)
    return NamedRun(f"{run.name.rpartition('@')[0]}@{earlier[-1].number}", run.folder, earlier[-1])


def describe_outcome(entry: RunEntry, folder: Path) -> str:
    """Return the verdict of a run, what it found if it was a scan, or why it has none.

    Args:
        entry: The run.
        folder: Its run folder.
    """
    if entry.verdict:
        return entry.verdict
    if entry.exit_code == _RUNNING:
        return "still under way, or was killed"
    if entry.exit_code == _CANNOT_BE_DONE:
        return "could not be done"
    scan = entry.locate_store(folder) / f"{SCAN}-{entry.instances[SCAN]}" if set(entry.instances) == {SCAN} else None
    sealed = read_seal(scan) if scan is not None else None
    return sealed.note if sealed is not None else "judged nothing"


def refuse_unjudged(run: NamedRun) -> None:
    """Refuse a run that came to no verdict.

    Raises:
        StoreError: It is under way or was killed, could not be done, or had nothing to judge.
    """
    entry = run.entry
    if entry.verdict:
        return
    if entry.exit_code == _RUNNING:
        why = "is still under way, or was killed"
    elif entry.exit_code == _CANNOT_BE_DONE:
        why = "could not be done (exit code 2)"
    else:
        why = f"judged nothing: it made only {', '.join(entry.instances)}"
    raise StoreError(f"{run.name} has no verdict: it {why}", next_step=f"finish it:  {entry.command}")


def _locate(text: str) -> Path | None:
    places = (Path(text).expanduser(), RUNS / text) if text else ()
    return next((folder for folder in places if (folder / MANIFEST_FILE).is_file()), None)

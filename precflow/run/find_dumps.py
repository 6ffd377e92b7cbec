"""Finds the dumps that a text on the command line names: a folder, a run, or one side of a run (``RUN:reference``)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precflow.agent import intake
from precflow.agent.contract import HEADER_FILE
from precflow.config.suggestions import did_you_mean
from precflow.dumps.formats import find_format, read_dump
from precflow.dumps.protocol import Dump
from precflow.errors import DumpError
from precflow.run.manifest import MANIFEST_FILE, Manifest
from precflow.run.store import Store, read_seal
from precflow.stages.dump import GIVEN_FILE
from precflow.stages.given_dump import list_collected

RUNS = Path("runs")
_STAGE = "dump."
_MOST_FOLDERS = 100  # of a folder that are looked into
_MOST_NAMED = 20  # dumps in a message


@dataclass(frozen=True)
class NamedDump:
    """One dump, with the name to type for it.

    Attributes:
        name: What to type for it.
        side: ``reference``, ``target``..., with ``@2`` for a second pass; ``""`` if the dump's folder itself was typed.
        path: The folder.
        note: One line about it.
    """

    name: str
    side: str
    path: Path
    note: str = ""


def find_dumps(text: str) -> list[NamedDump]:
    """Return the dump that a text names, or all dumps of the run that it names.

    Args:
        text: A dump's folder; a stage instance in a store; a run folder, its name below ``runs/``, or a store; either of the
            latter with ``:SIDE`` behind it for the newest dump of that side; or a folder in which dumps are collected.

    Raises:
        DumpError: There is no such place or no dump in it; names what is near.
    """
    try:
        return _find_dumps(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # cli.py has one message for it, whatever the path was for
            raise
        raise DumpError(
            f"{error.filename or text} cannot be read: {error.strerror}",
            next_step="give yourself the right to read it, and all below it",
        ) from error


def _find_dumps(text: str) -> list[NamedDump]:
    folder = Path(text).expanduser()
    if folder.exists() and (location := _locate_dump(folder)):
        return [NamedDump(text, "", location)]
    place, colon, side = text.rpartition(":")  # but a run folder's own name may have a colon, so the whole text is tried first
    run = _locate_run(text) or (_locate_run(place) if colon else None)
    if run is None:
        collected = _list_collected(folder) if text else []
        if not collected:
            raise _nothing_found_error(text)
        return collected
    names_side = bool(colon) and not _locate_run(text)
    dumps = list(_find_in_run(run, place if names_side else text))
    wanted = [dump for dump in dumps if dump.side == side] if names_side else dumps
    if not wanted:
        raise _no_dump_error(run, side, dumps)
    return wanted


def open_named_dump(text: str) -> Dump:
    """Open the dump that a text names, sealed or not.

    Raises:
        DumpError: The text names no dump, or several; the message lists them.
    """
    dumps = find_dumps(text)
    if len(dumps) > 1:
        names = "".join(f"\n      {dump.name}{dump.note and f'   {dump.note}'}" for dump in dumps[:_MOST_NAMED])
        names += f"\n      and {len(dumps) - _MOST_NAMED} more" if len(dumps) > _MOST_NAMED else ""
        raise DumpError(f"{text} has {len(dumps)} dumps:{names}", next_step="name one of them")
    return read_dump(dumps[0].path, allow_unsealed=True)


def _locate_dump(folder: Path) -> Path | None:
    """Return where a dump lies: here, or where the user's own is that this stage folder points to; ``None`` for neither."""
    if find_format(folder) is not None:
        return folder
    try:
        return Path(intake.read_json(folder / GIVEN_FILE)["path"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{folder / GIVEN_FILE} does not say where the dump is: {error}") from error


def _locate_run(text: str) -> Path | None:
    if not text:
        return None
    for folder in (Path(text).expanduser(), RUNS / text):
        if folder.is_dir() and ((folder / MANIFEST_FILE).is_file() or _list_stored(folder)):
            return folder
    return None


def _list_collected(folder: Path) -> list[NamedDump]:
    """Return the dumps in a folder that collects them, or in those inside of it; the newest first."""
    if not folder.is_dir():
        return []
    inside = [each for each in sorted(folder.iterdir()) if each.is_dir() and os.access(each, os.R_OK | os.X_OK)]
    found = next(filter(None, map(list_collected, [folder, *inside[:_MOST_FOLDERS]])), [])
    return [NamedDump(str(path), "", path, "" if number else "the newest") for number, path in enumerate(found)]


def _list_stored(folder: Path) -> list[Path]:
    """Return the dumps' stage instances in a store, newest first."""
    every = [sealed for path in folder.glob(f"{_STAGE}*") if path.is_dir() and (sealed := read_seal(path))]
    return [sealed.folder for sealed in sorted(every, key=lambda sealed: -sealed.finished)]


def _find_in_run(folder: Path, name: str) -> Iterator[NamedDump]:
    """Return the newest dump of each side of a run folder or a store."""
    seen = set()
    for path in _list_instances(folder):
        sealed = read_seal(path)
        side = sealed.name.removeprefix(_STAGE) if sealed else ""
        if sealed is None or side in seen:  # the newest come first, so one that was seen is newer
            continue
        location = _locate_dump(path)
        if location is not None:
            seen.add(side)
            yield NamedDump(f"{name}:{side}", side, location, sealed.note)


def _list_instances(folder: Path) -> list[Path]:
    """Return the stage instances of dumps: those of the newest run first, then all others of the store, newest first."""
    if not (folder / MANIFEST_FILE).is_file():
        return _list_stored(folder)
    entries = Manifest(folder).entries()
    roots = dict.fromkeys(Path(entry.store) for entry in reversed(entries) if entry.store)
    stores = [*roots, folder / "store"]
    last = [
        Store(root).root / f"{name}-{key}"
        for entry in reversed(entries)
        for name, key in entry.instances.items()
        if name.startswith(_STAGE)
        for root in stores
    ]
    others = [path for root in stores if root.is_dir() for path in _list_stored(root)]
    return [path for path in dict.fromkeys([*last, *others]) if path.is_dir()]


def _nothing_found_error(text: str) -> DumpError:
    runs = sorted(path.parent.name for path in RUNS.glob(f"*/{MANIFEST_FILE}"))
    name = text.partition(":")[0].rpartition("/")[2]
    if text.endswith(".onnx") and Path(text).expanduser().is_file():
        step = f"precflow +recipe=onnx_upgrade workload.model.file={text} target.conversion.file=new.onnx"
        return DumpError(f"{text} is a graph of ONNX, and has to run before anything can be compared", next_step=step)
    if Path(text).expanduser().is_file():
        step = "compare two logs:  precflow +recipe=loss_curves reference.log=A target.log=B"
        return DumpError(f"{text} is a file that is no dump", next_step=step)
    here = f"   Runs here: {', '.join(runs)}" if runs else ""
    return DumpError(
        f"there is no dump and no run at {text}.{did_you_mean(name, runs)}{here}",
        next_step=f"name a folder with {HEADER_FILE}, a run folder, or RUN:reference",
    )


def _no_dump_error(run: Path, side: str, dumps: list[NamedDump]) -> DumpError:
    if not dumps:
        return DumpError(
            f"{run} has no sealed dump yet", next_step="run it again; a side that failed left NAME.failed in its store"
        )
    sides = [dump.side for dump in dumps]
    return DumpError(
        f"{run} has no dump of {side}.{did_you_mean(side, sides)}   It has: {', '.join(dump.name for dump in dumps)}"
    )

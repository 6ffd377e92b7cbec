"""Stage ``dump`` of a side whose dump the user gives (``SIDE.dump=PATH``): nothing runs, and every byte is read once.

``PATH`` may also be a folder in which a team collects dumps, as a site file names it: then the newest in it is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent.contract import HEADER_FILE
from precflow.config.schema import SIDES, RunConfig
from precflow.dumps.formats import find_format
from precflow.dumps.protocol import Dump
from precflow.errors import DumpError
from precflow.stages.artifacts import read_once, write_value
from precflow.stages.curves import are_all
from precflow.stages.dump import GIVEN_FILE, identify, open_anything
from precflow.stages.job import Job, Stage, StageResult


def _declare(side: str, job: Job) -> Mapping[str, Any]:
    return {"content": _open(side, job).header.content}


def _locate(side: str, job: Job) -> Mapping[str, Any]:
    """Return where the dump is, with the size and time of each file, so that a copy or a changed dump is verified again."""
    dump = _open(side, job)
    path = dump.path.resolve()
    beside = path if path.is_dir() else path.parent
    files = beside.rglob("*") if dump.header.tool else [path / HEADER_FILE, *path.glob("rank*/step*/*")]
    stats = {file.relative_to(beside).as_posix(): file.stat() for file in files if file.is_file()}
    return {"path": str(path), "files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in sorted(stats.items())}}


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    """Read and verify every byte once: the header of a damaged copy is that of the whole dump, and would give the same key."""
    del needs
    dump = _open(side, job)
    damage = dump.verify() if dump.sealed else []
    write_value(folder / GIVEN_FILE, {"path": str(dump.path.resolve()), "damage": damage})
    if not dump.sealed:  # without a header there is no identity but that of all its files
        return StageResult(note="given, never sealed", seal=keys.file_digest(dump.path))
    whole = dump.header.content if dump.header.tool else identify(dump.path)
    is_chosen = dump.path.resolve() != _name_given(side, job).resolve()
    chosen = f"{dump.path.name}, the newest of its folder, " if is_chosen else ""
    return StageResult(
        note=f"given, {chosen}{damage[0] if damage else dump.header.tool or 'sealed'}",
        seal=keys.digest([whole, damage]) if damage else whole,
    )


def _open(side: str, job: Job) -> Dump:
    path = _name_given(side, job)
    if not path.is_dir() and find_format(path) is None:
        problem = "is a file, and no dump" if path.is_file() else "does not exist"
        raise DumpError(f"{side}.dump={path} {problem}", next_step=f"give the folder that holds {HEADER_FILE}")
    # The objects that later stages get: records are decoded once, and a dump that arrives in between is not taken.
    return read_once(open_anything, read_once(choose_newest, path.resolve()))


def _name_given(side: str, job: Job) -> Path:
    return Path(job.side(side).dump).expanduser()


def choose_newest(path: Path) -> Path:
    """Return the newest dump in a folder that collects dumps; the path itself if it is a dump, or holds none."""
    if not path.is_dir() or find_format(path) is not None:
        return path
    return next(iter(list_collected(path)), path)


def list_collected(path: Path) -> list[Path]:
    """Return the dumps in a folder that collects dumps, the newest first."""
    dumps = [folder for folder in path.iterdir() if folder.is_dir() and find_format(folder) is not None]
    return sorted(dumps, key=_find_time, reverse=True)


def _find_time(folder: Path) -> tuple[int, str]:
    """Return when something was last written into a folder; of the same moment, the last name counts."""
    written = (folder, *folder.glob("*"), *folder.glob("*/*"))
    return max(each.stat().st_mtime_ns for each in written if each.exists()), folder.name


def _list_sides(config: RunConfig) -> list[str]:
    """Return the sides whose dump is read; where nothing but curves is compared, not that of a side whose log is."""
    given = [side for side in SIDES if getattr(config, side).dump]
    return [side for side in given if not (are_all(config) and getattr(config, side).log)]


STAGE = Stage(
    name="dump",
    place=19,  # before dumps that are recorded: a damaged file is found before anything runs
    reads=(),
    declare=_declare,
    make=_make,
    parts=_list_sides,
    without_records=True,
    locate=_locate,
)

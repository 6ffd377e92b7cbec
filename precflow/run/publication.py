"""The report of the last run in its run folder: page, tables, ``public/``, ``repro/`` and event files, and a list of these.

The folder belongs to the user, who may keep other files beside the report or have made one of the folders a link. So only
files on the list ``published.json`` are deleted, and nothing is written or deleted behind a link.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from precflow.agent import intake
from precflow.errors import StoreError
from precflow.files import replacing, stays_below, write_text
from precflow.report import tensorboard
from precflow.report.tables import TABLES, TASK_FILE
from precflow.run.manifest import Manifest
from precflow.run.store import explain_disk_errors, read_seal

LIST_FILE = "published.json"
PUBLIC, REPRO, PAGE = "public", "repro", "report.html"
CHINESE_PAGE = "report.zh.html"  # of a report in both languages whose page has no switch
JOBS = "jobs"  # folder of the reports of several jobs, each in a folder with the number of its run
_FOLDERS = (PUBLIC, REPRO, tensorboard.FOLDER)
_INNER = tuple(f"{tensorboard.FOLDER}/{run}" for run in tensorboard.RUNS)  # folders in these that a report has files in
_FILES = (PAGE, CHINESE_PAGE, TASK_FILE, *(name for name, _ in TABLES.values()))


def withdraw(folder: Path) -> None:
    """Delete the report of an earlier run: if this run fails, a build server must not find its verdict.

    Args:
        folder: The run folder.

    Raises:
        StoreError: A folder of the report is a link, or a file cannot be deleted.
    """
    _refuse_links(folder)
    with explain_disk_errors(folder):
        for name in _list_published(folder):
            path = folder / name
            if path.is_file() and not path.is_symlink():
                path.unlink()
        (folder / LIST_FILE).unlink(missing_ok=True)


def publish(folder: Path, report: Path) -> Path:
    """Copy a report to the run folder in place of the one that is there, and return what to open: the page, or ``public/``.

    Args:
        folder: The run folder.
        report: Its own folder in the store.

    Raises:
        StoreError: The folder cannot be written, or something of the user's stands where a file of the report belongs. All
            other files are there then.
    """
    withdraw(folder)
    found = (path for name in (*_FOLDERS, *_INNER) for path in sorted(report.glob(f"{name}/*")) if path.is_file())
    sources = {path.relative_to(report).as_posix(): path for path in found}
    sources |= {name: path for name in _FILES if (path := report / name).is_file()}
    sources |= {page: sources[f"{PUBLIC}/{page}"] for page in (PAGE, CHINESE_PAGE) if f"{PUBLIC}/{page}" in sources}
    in_the_way = {name for name in sources if (folder / name).is_dir() or (folder / name).is_symlink()}
    with explain_disk_errors(folder):
        for name in {PUBLIC, *(str(PurePosixPath(name).parent) for name in sources)}:
            (folder / name).mkdir(parents=True, exist_ok=True)
        # The list comes first: what a killed run has published belongs to the report too.
        write_text(folder / LIST_FILE, json.dumps({"files": sorted(sources.keys() - in_the_way)}, indent=1) + "\n")
        for name in sources.keys() - in_the_way:
            with replacing(folder / name) as temporary:
                shutil.copyfile(sources[name], temporary)
    if in_the_way:
        name = min(in_the_way)
        kind = "link" if (folder / name).is_symlink() else "folder"
        raise StoreError(
            f"{folder / name} is a {kind} of your own: the file of the report was not written there",
            next_step=f"move it, then run the same command; the whole report is in {report}",
        )
    return folder / PAGE if PAGE in sources else folder / PUBLIC


def _refuse_links(folder: Path) -> None:
    for path in (folder / name for name in (*_FOLDERS, *_INNER)):
        if path.is_symlink():
            raise StoreError(
                f"{path} is a link to {path.resolve()}: a run deletes and writes only in folders of its own",
                next_step=f"remove the link (rm {path}), and copy {path.name}/ there after the run",
            )


def _list_published(folder: Path) -> Iterable[str]:
    """Return the names of the files that the last report has put into a run folder."""
    file = folder / LIST_FILE
    if not file.exists():  # written by a precflow without the list, or nothing was published yet
        return _list_from_history(folder)
    try:
        names = intake.read_json(file)["files"]
        usable = isinstance(names, list) and all(isinstance(name, str) and stays_below(name) for name in names)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot read {file}: {error}", next_step=f"remove it: rm {file}") from error
    if not usable or any(PurePosixPath(name).parts[0] not in {*_FOLDERS, *_FILES} for name in names):
        raise StoreError(f"{file} is not what a run has written", next_step=f"remove it: rm {file}")
    return list(names)


def _list_from_history(folder: Path) -> list[str]:
    for entry in reversed(Manifest(folder).entries()):
        if "report" in entry.instances:
            sealed = read_seal(entry.locate_store(folder) / f"report-{entry.instances['report']}")
            names = [] if sealed is None else [name for name in sealed.files if name.partition("/")[0] in {*_FOLDERS, *_FILES}]
            return [*names, PAGE]
    return []

"""Reads a curve from whatever a run has left: a file or a folder of one of the kinds in :mod:`precflow.curves.formats`."""

from __future__ import annotations

from pathlib import Path

from precflow.curves.formats import list_formats, text_log
from precflow.curves.log import Log, refuse_unreadable
from precflow.curves.series import Series
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError


def read_curve(path: Path, wanted: Wanted, place: str = "") -> Series:
    """Return a curve of a log.

    Args:
        path: A file, or a folder that a run wrote, of one of the known kinds.
        wanted: Which curve.
        place: How messages call the log; ``""`` is its path.

    Raises:
        CurveError: It does not exist, is of no known kind, or does not have the curve.
    """
    place = place or str(path)
    try:
        return _read_folder(path, wanted, place) if path.is_dir() else _read_file(Log(path, place), wanted)
    except OSError as error:
        raise refuse_unreadable(error, place) from error


def _read_folder(path: Path, wanted: Wanted, place: str) -> Series:
    for form in list_formats():
        files = form.find(path, wanted) if form.find else ()
        if files:
            logs = [Log(file, f"{place}/{file.relative_to(path)}") for file in files]
            return form.read(logs, wanted)
    kinds = ", ".join(form.title for form in list_formats() if form.find)
    raise CurveError(
        f"{place} is a folder without a log that is known by its name ({kinds})",
        next_step="give the file that the run has written its losses to",
    )


def _read_file(log: Log, wanted: Wanted) -> Series:
    if wanted.pattern and not log.is_binary:  # a pattern reads lines, whatever else the file may be
        return text_log.FORMAT.read([log], wanted)
    for form in list_formats():
        if form.recognizes(log):
            return form.read([log], wanted)
    what = "is damaged" if "tfevents" in log.path.name else "is a binary file of no known kind"
    kinds = ", ".join(form.title for form in list_formats())
    raise CurveError(f"{log.place} {what}", next_step=f"give one of: {kinds}")

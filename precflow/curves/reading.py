"""Reads a curve from whatever a run has left: the kind of a file is told by what is in it, not by its name."""

from __future__ import annotations

from pathlib import Path

from precflow.curves.event_file import is_event_file, read_events
from precflow.curves.json_log import read_json
from precflow.curves.series import Series
from precflow.curves.table import find_separator, read_table
from precflow.curves.text_log import read_text
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

_HEAD = 1 << 13  # bytes by which the kind of a file is told
_EVENT_FILES = "*tfevents*"
_TRAINER_STATE = "trainer_state.json"
_TABLE_ENDINGS = frozenset({".csv", ".tsv"})
_JSON_ENDINGS = frozenset({".json", ".jsonl", ".ndjson"})


def read_curve(path: Path, wanted: Wanted, place: str = "") -> Series:
    """Return a curve of a log.

    Args:
        path: A file of JSON, JSON lines, CSV or text, a TensorBoard event file, or a folder of a run of TensorBoard or of the
            Trainer of transformers.
        wanted: Which curve.
        place: How messages call the log; ``""`` is its path.

    Raises:
        CurveError: It does not exist, is of no known kind, or does not have the curve.
    """
    place = place or str(path)
    if path.is_dir():
        return _read_folder(path, wanted, place)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        return _read_file(path, head, wanted, place)
    except FileNotFoundError as error:
        raise CurveError(f"{place} does not exist", next_step="give the file that the run has written its losses to") from error
    except OSError as error:
        raise CurveError(f"{place} cannot be read: {error.strerror or error}", next_step="check its permissions") from error


def _read_folder(path: Path, wanted: Wanted, place: str) -> Series:
    events = sorted(path.glob(_EVENT_FILES))
    if events:
        return read_events(events, wanted, place)
    state = path / _TRAINER_STATE
    if state.is_file():
        return read_curve(state, wanted, f"{place}/{_TRAINER_STATE}")
    raise CurveError(
        f"{place} is a folder without event files of TensorBoard and without {_TRAINER_STATE}",
        next_step="give the file that the run has written its losses to",
    )


def _read_file(path: Path, head: bytes, wanted: Wanted, place: str) -> Series:
    if is_event_file(head):
        return read_events([path], wanted, place)
    if b"\0" in head:
        what = "is damaged" if "tfevents" in path.name else "is a binary file, and no event file of TensorBoard"
        raise CurveError(f"{place} {what}", next_step="give a log as text, JSON, JSON lines, CSV, or TensorBoard's event file")
    if wanted.pattern:
        return read_text(path, wanted, place)
    if _looks_like_json(path, head):
        return read_json(path.read_text(encoding="utf-8-sig", errors="replace"), wanted, place)
    start = head.decode("utf-8-sig", "replace")
    separator = find_separator(start, is_table=path.suffix.lower() in _TABLE_ENDINGS)
    if separator:
        return read_table(path.read_text(encoding="utf-8-sig", errors="replace"), wanted, place, separator)
    return read_text(path, wanted, place)


def _looks_like_json(path: Path, head: bytes) -> bool:
    """Tell whether a file is JSON: by its ending, or by a bracket and what follows it.

    The Trainer of transformers prints dicts of Python, and many loggers begin a line with a date in brackets.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if path.suffix.lower() in _JSON_ENDINGS:
        return bool(text)
    opening, inside = text[:1], text[1:].lstrip()[:1]
    return (opening == b"{" and inside in (b'"', b"}")) or (opening == b"[" and inside in (b"{", b"["))

"""Logs of a device's libraries: asking for them, finding them after a run, and the lines around their first error.

CANN writes ``plog-PID_*.log`` for the process and ``device-PID_*.log`` for what ran on the device, below the folder that
``ASCEND_PROCESS_LOG_PATH`` names (else ``~/ascend/log``); older drivers keep slog in ``/var/log/npu/slog``. CUDA and NCCL write
where ``CUDA_LOG_FILE`` and ``NCCL_DEBUG_FILE`` say. What is found lies beside the dump then, cut to size and without secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from precflow.agent import redaction
from precflow.breakdown import DeviceLog
from precflow.sides.agent_log import redact_log

FOLDER = "device-log"
LEVELS = ("debug", "info", "warning", "error")  # 0 to 3, as CANN counts them

_OF_NCCL = ("TRACE", "INFO", "WARN", "WARN")
_NAME = re.compile(r"(?:plog|slog|device|host|device-os|device-app|cuda|nccl)-?[\w.-]*\.log", re.ASCII)
_SYSTEM = Path("/var/log/npu/slog")
_ERROR = re.compile(rb"^\[ERROR\]|\[CUDA\]\[E\]|\bNCCL WARN\b")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d\.\d{3}(?:\.\d{3})?")
_MOST_FILES, _DEEPEST, _MOST_SHOWN = 200, 5, 3
_LARGEST = 4_000_000  # bytes that are kept of a log
_ALL = 20_000_000  # bytes that are kept of all logs of a run
_BEFORE, _AFTER = 5, 10  # lines around an error
_LONGEST = 400  # letters of a line that is shown


def log_variables(level: str, folder: Path) -> dict[str, str]:
    """Return the variables that have the libraries of a device write logs of a level below a folder."""
    place, number = (folder / FOLDER).absolute(), LEVELS.index(level)
    return {
        "ASCEND_GLOBAL_LOG_LEVEL": str(number),
        "ASCEND_PROCESS_LOG_PATH": str(place),
        "ASCEND_SLOG_PRINT_TO_STDOUT": "0",
        "CUDA_LOG_FILE": str(place / "cuda.log"),
        "NCCL_DEBUG": _OF_NCCL[number],
        "NCCL_DEBUG_FILE": str(place / "nccl-%h-%p.log"),
    }


def collect(folder: Path, environment: Mapping[str, str], began: float) -> tuple[DeviceLog, ...]:
    """Bring the logs that a side has written since it began into its folder, and return the lines around their errors.

    Args:
        folder: Where its agent worked; they lie in ``device-log`` there.
        environment: The variables that it was started with.
        began: When that was, in seconds since 1970.

    Returns:
        Of each log with an error, the earliest error first; of a few logs.
    """
    ours = folder / FOLDER
    room, found = _ALL, list[tuple[bytes, DeviceLog]]()
    for root in _list_roots(ours, environment):
        for path in _list_logs(root, began):
            with contextlib.suppress(OSError):
                kept = ours / path.relative_to(root)
                at = _find_error(path)
                kept.parent.mkdir(parents=True, exist_ok=True)
                size = _keep(path, kept, at, min(_LARGEST, room))
                room -= size
                redact_log(kept)
                found += _read_error(kept, kept.relative_to(ours).as_posix())
    return tuple(log for _, log in sorted(found, key=lambda each: each[0])[:_MOST_SHOWN])


def _list_roots(ours: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders where logs may lie, ours first."""
    named = [environment.get("ASCEND_PROCESS_LOG_PATH"), environment.get("ASCEND_WORK_PATH")]
    home = environment.get("HOME", "")
    places = [ours, *(Path(text) for text in named if text), *([Path(home) / "ascend" / "log"] if home else []), _SYSTEM]
    seen = set()
    for place in places:
        with contextlib.suppress(OSError):
            if place.is_dir() and place.resolve() not in seen:
                seen.add(place.resolve())
                yield place


def _list_logs(root: Path, began: float) -> list[Path]:
    """Return the logs below a folder that were written to since a time, the newest first; links are not followed."""
    logs: list[tuple[float, Path]] = []
    for place, folders, names in os.walk(root):
        if len(Path(place).relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        for name in names:
            path = Path(place, name)
            with contextlib.suppress(OSError):
                status = path.lstat()
                if _NAME.fullmatch(name) and path.is_file() and not path.is_symlink() and status.st_mtime >= began - 1:
                    logs.append((status.st_mtime, path))
    return [path for _, path in sorted(logs, key=lambda each: -each[0])[:_MOST_FILES]]


def _find_error(path: Path) -> int:
    """Return the place of the first line of a log that says an error, in bytes; -1 if none does."""
    place = 0
    with path.open("rb") as file:
        for line in file:
            if _ERROR.search(line):
                return place
            place += len(line)
    return -1


def _keep(path: Path, kept: Path, at: int, most: int) -> int:
    """Copy a log, or what stands around its first error (else its end) if it is too large; return how many bytes that are."""
    size = path.stat().st_size
    if size <= most:
        if path != kept:
            shutil.copyfile(path, kept)
        return size
    begin = max(0, min(at - most // 4, size - most) if at >= 0 else size - most)
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(most)
    note = f"[precflow] {begin} bytes before and {size - begin - len(data)} after are left out\n".encode()
    kept.write_bytes(note + data)
    return len(data)


def _read_error(log: Path, name: str) -> list[tuple[bytes, DeviceLog]]:
    """Return the lines around the first error of a log, with its time to sort by; nothing without one."""
    before: list[bytes] = []
    with log.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if _ERROR.search(line):
                after = [next(file, b"") for _ in range(_AFTER)]
                lines = [_show(each) for each in (*before, line, *after) if each]
                time = _TIME.search(line)
                return [(time[0] if time else b"~", DeviceLog(name, number, tuple(lines), len(before)))]
            before = [*before[1 - _BEFORE :], line]
    return []


def _show(line: bytes) -> str:
    return redaction.redact_text(line.decode("utf-8", "replace").rstrip("\r\n"))[:_LONGEST]

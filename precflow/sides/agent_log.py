"""What an agent has printed, and the call that it began last: what is left of one that has crashed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from precflow.agent import intake, redaction
from precflow.agent.contract import LAST_CALL_BYTES, LAST_CALL_FILE, LOG_FILE, RANK_LOG_FILE

LOG_LINES = 15  # lines of the log that are shown of a side that died without an error message
_BLOCK = 1 << 20  # bytes that are redacted at once
_STACK = ("Stack (most recent call first)", "Current thread 0x")  # how faulthandler begins the stack of the thread that counts
_STACKS = ("Fatal Python error", *_STACK)  # how the output of faulthandler begins


def log_of(rank: int | None) -> str:
    """Return the name of the file with what a rank of a side has printed."""
    return RANK_LOG_FILE % rank if rank else LOG_FILE


def read_last_lines(folder: Path, name: str = LOG_FILE, count: int = LOG_LINES) -> list[str]:
    """Return the last lines of the agent's log, or the innermost frames after a crash or a hang; ``[]`` if there is no log.

    A Python stack dump has the innermost frame first, so its end would show only how the program was started.
    """
    try:
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    stacks = next((number for number, line in enumerate(lines) if line.startswith(_STACKS)), None)
    if stacks is None:
        return lines[-count:]
    first = next((number for number in range(stacks, len(lines)) if lines[number].startswith(_STACK)), stacks)
    return [*lines[:stacks][-count // 3 :], *lines[stacks : min(first, stacks + 1)], *lines[first : first + count // 2]]


def redact_log(log: Path) -> None:
    """Hide the secrets in a finished log: the workload may have printed some."""
    clean, changed = log.with_name(f"{log.name}.{os.getpid()}.clean"), False
    with contextlib.suppress(OSError):
        with log.open("rb") as source, clean.open("wb") as target:
            while lines := source.readlines(_BLOCK):
                text = b"".join(lines).decode("utf-8", "surrogateescape")  # so that bytes that are not UTF-8 stay as they are
                shown = redaction.redact_text(text)
                changed |= shown != text
                target.write(shown.encode("utf-8", "surrogateescape"))
        if changed:
            clean.replace(log)
    with contextlib.suppress(OSError):
        clean.unlink(missing_ok=True)


class LastCall(NamedTuple):
    """The call that a rank began last, in the order of the lines of its file.

    Attributes:
        step: Number of the step.
        phase: ``forward`` or ``backward``.
        module: The module that ran, or that called the operator.
        class_name: Its class.
        operator: The operator; ``""`` for the module itself.
        site: Where it was called from.
        last: Identity of the last record before it.
        given: The tensors that it was given, as text.
    """

    step: str = ""
    phase: str = ""
    module: str = ""
    class_name: str = ""
    operator: str = ""
    site: str = ""
    last: str = ""
    given: str = ""


def read_last_call(folder: Path, rank: int = 0) -> LastCall | None:
    """Return the call that a rank began last and never ended; ``None`` if none was recorded."""
    try:
        data = intake.read_bytes(folder / (LAST_CALL_FILE % rank), LAST_CALL_BYTES).partition(b"\0")[0]
    except (OSError, ValueError):
        return None
    lines = redaction.redact_text(data.decode("utf-8", "replace")).split("\n")
    return LastCall(*lines[: len(LastCall._fields)]) if len(lines) > 1 else None


def describe_last_call(folder: Path, rank: int = 0) -> str:
    """Return the call that a rank began last and never ended, as the end of a sentence; ``""`` if none was recorded."""
    call = read_last_call(folder, rank)
    if call is None:
        return ""
    what = f"{call.module} / {call.operator}" if call.operator else call.module
    return f"; the last call that it began: {what} ({call.phase} of step {call.step}){f' at {call.site}' if call.site else ''}"

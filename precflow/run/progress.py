"""Shows on stderr how a run goes: a line for each finished stage, and a spinner with a bar on a terminal, heartbeats in CI."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape

from precflow import streams
from precflow.agent import redaction
from precflow.report.ci import format_stage
from precflow.streams import printable

_BAR = 20  # letters of a bar
_SECONDS_TO_JUDGE = 3.0  # before it, the pace of a bar says little
HEARTBEAT_SECONDS = 60.0  # build servers stop a job that prints nothing for some minutes


class Progress(Protocol):
    """What the runner calls to show its progress."""

    def working(self, stage: str, side: str) -> contextlib.AbstractContextManager[None]:
        """Enter while a stage works."""

    def say(self, text: str) -> None:
        """Show what the stage is doing."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Show how much of the work is done: ``done`` of ``total`` units, such as bytes or steps. Any thread may call it."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Show that a stage was made, kept from before, or skipped."""


class Terminal:
    """A spinner while a stage works, with a bar if it tells how far it is, and one line when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._title = self._text = self._bar = ""
        self._began = 0.0

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Show the spinner."""
        self._title, self._text, self._bar, self._began = f"{stage} {side}".strip(), "", "", time.monotonic()
        with self._console.status(self._title) as self._status:
            yield

    def say(self, text: str) -> None:
        """Put the text beside the spinner."""
        self._text = escape(printable(redaction.redact_text(text)))
        self._show()

    def advance(self, done: int, total: int, unit: str) -> None:
        """Put a bar beside the spinner, with the time left."""
        elapsed = time.monotonic() - self._began  # with the start of an agent: the first steps are the only ones there may be
        self._bar = format_bar(done, total, unit, elapsed, ascii_only=self._console.encoding != "utf-8")
        self._show()

    def _show(self) -> None:
        parts = [self._title, self._bar, f"[dim]{self._text}[/dim]" if self._text else ""]
        self._status.update("  ".join(part for part in parts if part))

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Print the stage's line."""
        tick = "+" if self._console.encoding != "utf-8" else "✓"
        mark = {"kept": "=", "skipped": "?"}.get(state, tick)
        spent = f"{seconds:.0f} s" if mark == tick else "later" if state == "skipped" else state
        line = f" {mark} {stage:<13}{side:<10} {spent:>6}   {note}"
        self._console.print(escape(printable(redaction.redact_text(line))), highlight=False, overflow="ellipsis", no_wrap=True)


class Lines:
    """Plain lines for build servers, and a heartbeat so that they do not think it hangs."""

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe
        self._share = ""

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Print a heartbeat every minute."""
        self._share = ""
        with _Heartbeat(lambda seconds: self._line(stage, side, "running", seconds, self._share)):
            yield

    def say(self, text: str) -> None:
        """Print nothing: a build server keeps every line, and there would be many."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Remember it for the next heartbeat."""
        del unit
        self._share = f" progress={min(100, 100 * done // max(total, 1))}%"

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Print the stage's line."""
        del note
        self._line(stage, side, state if state in {"kept", "skipped"} else "done", seconds)

    def _line(self, stage: str, side: str, state: str, seconds: float, share: str = "") -> None:
        streams.say(format_stage(self._recipe, stage, side=side, state=state, seconds=seconds) + share)


class Quiet:
    """Prints nothing, for ``output=quiet``."""

    @contextlib.contextmanager
    def working(self, stage: str, side: str) -> Iterator[None]:
        """Do nothing."""
        del stage, side
        yield

    def say(self, text: str) -> None:
        """Do nothing."""

    def advance(self, done: int, total: int, unit: str) -> None:
        """Do nothing."""

    def done(self, stage: str, side: str, state: str, seconds: float, note: str) -> None:
        """Do nothing."""


class _Heartbeat:
    """Calls ``beat`` once a minute with the seconds so far, from a thread, until the block ends."""

    def __init__(self, beat: Callable[[float], None]) -> None:
        self._beat = beat
        self._over = threading.Event()
        # A daemon, so that a thread that waits for the next minute never keeps the process from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._over.wait(HEARTBEAT_SECONDS):  # False after a minute, True at once when the stage is over
            self._beat(time.monotonic() - started)


def format_bar(done: int, total: int, unit: str, elapsed: float, *, ascii_only: bool = False) -> str:
    """Return a bar with what is done, and the time that is left at this pace; bytes are shown as MB.

    Args:
        done: Units that are done.
        total: Units in all.
        unit: Such as ``steps``.
        elapsed: Seconds since the work began.
        ascii_only: Use only ASCII letters.

    >>> format_bar(3, 10, "steps", 30.0)
    '██████░░░░░░░░░░░░░░ 3 of 10 steps, 1 min left'
    >>> format_bar(50_000_000, 200_000_000, "bytes", 1.0, ascii_only=True)
    '#####............... 50 of 200 MB'
    """
    full, empty = "#." if ascii_only else "█░"
    share = min(1.0, done / total) if total else 1.0
    filled = int(share * _BAR)
    amount = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if unit == "bytes" else f"{done} of {total} {unit}"
    text = f"{full * filled}{empty * (_BAR - filled)} {amount}"
    if elapsed < _SECONDS_TO_JUDGE or not done or done >= total:  # too early to tell the pace
        return text
    left = elapsed / done * (total - done)
    return f"{text}, {f'{left / 60:.0f} min' if left >= 60 else f'{left:.0f} s'} left"


def choose(output: str, recipe: str, *, ci: bool) -> Progress:
    """Return the progress display that ``output=`` asks for; ``auto`` means ``ci`` in CI or if stderr is no terminal."""
    if output == "quiet":
        return Quiet()
    if output == "ci" or (output == "auto" and (ci or not sys.stderr.isatty())):
        return Lines(recipe)
    return Terminal(Console(stderr=True))
